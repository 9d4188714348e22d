"""Participation: the states of the clients by round, from the records and the trace, and pictures of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.config import Settings
from fedtide.engine.client_states import State, States, availability_of, planned_steps, states_of
from fedtide.engine.history import Numbers, bins
from fedtide.engine.observers import Record
from fedtide.report import plots
from traces import Trace

ROWS, COLUMNS = 200, 400  # of a picture, at most
MAX_KEPT = 10_000_000  # states in memory; of more, an even sample of the clients is kept
MAX_EVALUATED = 200_000_000  # clients x rounds of a trace; of more, only some rounds are evaluated


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

    def by_availability(self) -> NDArray[np.intp]:
        """Return the kept clients, ordered by the share of their rounds in which they were online."""
        member = np.maximum((self.states > State.ABSENT).sum(axis=1), 1)
        online = (self.states > State.OFFLINE).sum(axis=1) / member
        return np.argsort(-online, kind="stable")

    def picture(self, order: NDArray[np.intp] | None = None) -> Picture:
        """Return the states of the kept clients, in the order given, by default that of their numbers."""
        states = self.states if order is None else self.states[order]
        (rows, heights), (columns, widths) = bins(len(states), ROWS), bins(len(self.rounds), COLUMNS)
        by_row = (np.add.reduceat(states == state, rows, 0, np.int64) for state in State)
        counts = np.stack([np.add.reduceat(sums, columns, 1) for sums in by_row], axis=-1)
        members = counts[..., State.OFFLINE :].sum(axis=-1)
        counted = counts[..., State.INCOMPLETE :].sum(axis=-1)
        share = plots.ratios(counted, members)
        ends = np.minimum((rows + heights) * self.step, self.num_clients) - 1
        clients = [*zip((rows * self.step).tolist(), ends.tolist(), strict=True)]
        first, last = (np.take(self.rounds, at).tolist() for at in (columns, columns + widths - 1))
        rounds = [*zip(first, last, strict=True)]
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
    available = availability_of(trace, settings.round_ends > 0)
    if isinstance(available, str):
        notes.append(
            f"The trace is not available here ({available}): clients that were not asked may have been "
            "offline, not selected, or not members."
        )
    if settings.round_ends:
        notes.append("Rounds differ in length. Late are clients that are at work when a round ends.")
    planned = planned_steps(records, settings)
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
