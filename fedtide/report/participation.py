"""Participation: the states of the clients by round, from the records and the trace, and pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.config import Settings
from fedtide.engine.history import Numbers, bins
from fedtide.engine.observers import Record
from fedtide.engine.transports.late import LATE
from fedtide.federation import Federation
from fedtide.report import plots
from traces import RoundAvailability, Trace
from traces.base import microseconds
from traces.compose import timeline

States = NDArray[np.int8]

ROWS, COLUMNS = 200, 400  # of a picture, at most
MAX_KEPT = 10_000_000  # states in memory; of more, an even sample of the clients is kept
MAX_EVALUATED = 200_000_000  # clients x rounds of a trace; of more, only some rounds are evaluated


class State(IntEnum):
    """The state of a client in a round, in order of how much work arrives."""

    ABSENT = 0  # not a member
    OFFLINE = 1
    NOT_SELECTED = 2  # online, but not asked
    DROPPED = 3  # asked, but it drops out in mid-round: nothing arrives
    LOST = 4  # it did its work, but the reply is lost
    LATE = 5  # its reply arrives in a later round
    REJECTED = 6  # its reply does not count, or it failed in another way
    INCOMPLETE = 7
    COMPLETE = 8

    @property
    def shown(self) -> str:
        """Its name for readers."""
        return self.name.lower().replace("_", " ")


BY_REASON = {"dropped in mid-round": State.DROPPED, "reply lost": State.LOST, LATE: State.LATE}

COLOURS = {  # light and dark; absent clients have the colour of the page
    State.ABSENT: ("#ffffff", "#16181c"),
    State.OFFLINE: ("#dfe2e7", "#33373e"),
    State.NOT_SELECTED: ("#b4bcc8", "#5a626e"),
    State.DROPPED: ("#D55E00", "#D55E00"),
    State.LOST: ("#CC79A7", "#CC79A7"),
    State.LATE: ("#E69F00", "#E69F00"),
    State.REJECTED: ("#4a4a4a", "#d5d8dc"),
    State.INCOMPLETE: ("#8CCBEF", "#2F6690"),
    State.COMPLETE: ("#0072B2", "#56B4E9"),
}


class Picture(NamedTuple):
    """States in cells, clients by rounds."""

    states: NDArray[np.int8]  # the most frequent one of each cell, shape (rows, columns)
    took_part: Numbers  # share of a cell's members whose replies counted, same shape; NaN without members
    clients: list[tuple[int, int]]  # of each row, the first and the last; by availability, their ranks
    single: list[int | None]  # the client of each row that has only one
    rounds: list[tuple[int, int]]  # of each column, the first and the last

    @property
    def largest(self) -> tuple[int, int]:
        """How many clients and rounds the largest cell has."""
        clients, rounds = (max(b - a + 1 for a, b in pairs) for pairs in (self.clients, self.rounds))
        return clients, rounds

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one client in one round."""
        return self.largest == (1, 1)


class StateGrid:
    """Collects the states of all clients, round by round."""

    def __init__(self, num_clients: int, rounds: Sequence[int]) -> None:
        self.num_clients, self.rounds = num_clients, list(rounds)
        self.step = max(1, -(-num_clients * len(self.rounds) // MAX_KEPT))  # every step-th client is kept
        self.states = np.zeros((-(-num_clients // self.step), len(self.rounds)), np.int8)
        self._column = {t: column for column, t in enumerate(self.rounds)}

    @property
    def notes(self) -> list[str]:
        """A sentence on the sample, if not all clients are kept."""
        shown = f"One in {self.step} of the {self.num_clients:,} clients is shown."
        return [shown] if self.step > 1 else []

    def add(self, t: int, states: States) -> None:
        """Add the states of a round, shape (N,)."""
        self.states[:, self._column[t]] = states[:: self.step]

    def occurring(self) -> list[State]:
        """Return the states that occur."""
        return [State(code) for code in np.unique(self.states).tolist()]

    def by_availability(self) -> NDArray[np.intp]:
        """Return the kept clients, ordered by the share of their rounds in which they were online."""
        member = np.maximum((self.states > State.ABSENT).sum(axis=1), 1)
        online = (self.states > State.OFFLINE).sum(axis=1) / member
        return np.argsort(-online, kind="stable")

    def picture(self, order: NDArray[np.intp] | None = None) -> Picture:
        """Return the states of the kept clients, in the order given, by default that of their numbers."""
        states = self.states if order is None else self.states[order]
        rows, columns = bins(len(states), ROWS)[0], bins(len(self.rounds), COLUMNS)[0]
        by_row = (np.add.reduceat(states == state, rows, 0, np.int64) for state in State)
        counts = np.stack([np.add.reduceat(sums, columns, 1) for sums in by_row], axis=-1)
        members = counts[..., State.OFFLINE :].sum(axis=-1)
        counted = counts[..., State.INCOMPLETE :].sum(axis=-1)
        share = np.divide(counted, members, out=np.full(members.shape, np.nan), where=members > 0)
        last = self.num_clients - 1
        clients = [(a * self.step, min(b * self.step - 1, last)) for a, b in _bounds(rows, len(states))]
        rounds = [(self.rounds[a], self.rounds[b - 1]) for a, b in _bounds(columns, len(self.rounds))]
        of_row = range(len(states)) if order is None else order
        single = [int(of_row[a]) if a == b and self.step == 1 else None for a, b in clients]
        return Picture(counts.argmax(axis=-1).astype(np.int8), share, clients, single, rounds)


class Participation(NamedTuple):
    """The states of the clients in the rounds of a run or of a trace."""

    grid: StateGrid
    online: Numbers  # share of the members in each round; NaN without members or where it is unknown
    took_part: Numbers  # likewise
    hours: Numbers | None  # virtual hours at the ends of the rounds; None without a clock
    notes: list[str]
    devices: Sequence[str] = ()  # see `Trace`
    began: float | None = None  # time of the calendar at virtual time 0, see `began_at`

    @property
    def rounds(self) -> list[int]:
        """The rounds that were evaluated."""
        return self.grid.rounds


def began_at(trace: Trace, hours: Numbers | None) -> float | None:
    """Return the time of the calendar at virtual time 0, in seconds since 1970, while that means something.

    It is None if the recording has no dates, or if it is over when the last of the rounds, which end at
    these hours, begins: it has then started over.
    """
    if trace.dates is None or hours is None or len(hours) < 2:
        return None
    began, end = trace.dates
    return began if began + 3600 * hours[-2] < end else None


def try_trace(settings: Settings) -> Trace | str:
    """Return the trace that the settings name, or why it cannot be made."""
    try:
        federation = Federation.of(settings.for_clients())
        if federation.trace_needs_data and (missing := federation.missing_folder) is not None:
            return f"it depends on the data, which are not in {missing}"
        return federation.trace
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def of_run(
    records: Sequence[Record], settings: Settings, trace: Trace | str, client_names: Sequence[str] = ()
) -> Participation | None:
    """Return the participation in a run; None if no round was recorded.

    `trace` may be the reason why there is none; then only the records are used.
    """
    by_round = {record["round"]: record for record in records if record["round"] > 0}
    if not by_round:
        return None
    n, notes, every = settings.num_clients, [], sorted(by_round)
    rounds = [every[i] for i in plots.thinned(len(every), max(2, MAX_EVALUATED // n))]
    if len(rounds) < len(by_round):
        notes.append(f"An even sample of {len(rounds):,} of the {len(by_round):,} rounds is shown.")
    available = _availability(trace, settings.round_ends > 0)
    if isinstance(available, str):
        notes.append(
            f"The trace is not available here ({available}): clients that were not asked may have been "
            "offline, not selected, or not members."
        )
    if settings.round_ends:
        notes.append("Rounds differ in length. Late are clients that are at work when a round ends.")
    planned = _planned(records, settings)
    if settings.local_epochs:
        notes.append("Complete means as many steps as the client did in any round.")
    grid = StateGrid(n, rounds)
    shares = np.full((2, len(rounds)), np.nan)
    for column, t in enumerate(rounds):
        record = by_round[t]
        now = None if isinstance(available, str) else available(record)
        grid.add(t, states_of(record, now, n, planned))
        active = len(record.get("active", []))
        if now is None:
            shares[1, column] = active / n
        elif members := int(now.member.sum()):
            shares[:, column] = int(now.online.sum()) / members, active / members
    hours = np.array([by_round[t].get("virtual_seconds") or np.nan for t in rounds]) / 3600
    known = hours if np.isfinite(hours).all() and not settings.round_ends else None
    began = None if isinstance(trace, str) else began_at(trace, known)
    return Participation(grid, shares[0], shares[1], known, [*notes, *grid.notes], client_names, began)


def _availability(trace: Trace | str, in_event_time: bool) -> Callable[[Record], RoundAvailability] | str:
    """Return a function from records to the availability as their rounds begin, or why it is unknown."""
    if isinstance(trace, str):
        return trace
    if not in_event_time:
        return lambda record: trace.round(record["round"])
    try:
        known = timeline(trace)
    except ValueError as error:  # the trace has no event time
        return str(error)
    return lambda record: known.availability(record["round"], int(microseconds(record["begin"])))


def states_of(
    record: Record, now: RoundAvailability | None, num_clients: int, planned: NDArray[np.int64] | int
) -> States:
    """Return the state of each client in a round, shape (N,); `now` is None where the trace is unknown."""
    states: States = np.full(num_clients, State.NOT_SELECTED, np.int8)
    if now is not None:
        states[~now.online] = State.OFFLINE
        states[~now.member] = State.ABSENT
    states[_clients(record.get("at_work"), num_clients)] = State.LATE
    in_event_time = "begin" in record  # whoever is asked stays at work until more is known
    states[_clients(record.get("selected"), num_clients)] = State.LATE if in_event_time else State.DROPPED
    states[_clients([client for client, _ in record.get("withdrawn") or ()], num_clients)] = State.ABSENT
    for name, reason in (record.get("failed") or {}).items():
        if name.isdecimal() and int(name) < num_clients:
            states[int(name)] = BY_REASON.get(reason, State.REJECTED)
    active = _clients(record.get("active"), num_clients)
    steps = record.get("steps") or []
    if len(active) and len(steps) == len(active):
        done = np.array([np.inf if s is None else s for s in steps], np.float64)  # not reported means all
        own = planned if isinstance(planned, int) else planned[active]
        states[active] = np.where(done >= own, State.COMPLETE, State.INCOMPLETE)
    else:
        states[active] = State.COMPLETE
    return states


def _clients(names: Sequence[int | str] | None, num_clients: int) -> NDArray[np.intp]:
    """Return the clients among names; in other Flower projects, some have no number."""
    try:
        clients = np.array(names or [], np.intp)
    except (ValueError, OverflowError):
        clients = np.array([name for name in names or [] if isinstance(name, int)], np.intp)
    return clients[(clients >= 0) & (clients < num_clients)]


def _planned(records: Sequence[Record], settings: Settings) -> NDArray[np.int64] | int:
    """Return E, or for local epochs the most steps that each client did."""
    if not settings.local_epochs:
        return settings.local_steps
    most = np.ones(settings.num_clients, np.int64)
    for record in records:
        active, steps = _clients(record.get("active"), len(most)), record.get("steps") or []
        if len(active) == len(steps):
            most[active] = np.maximum(most[active], [step or 1 for step in steps])
    return most


def _bounds(starts: NDArray[np.intp], count: int) -> list[tuple[int, int]]:
    return [*zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True)]
