"""Who took part in a run: the states of the clients by round, from the records and the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clients.environment import make_trace, missing_folder, needs_data
from flexfl.config import Settings
from flexfl.engine.transports.late import LATE
from flexfl.report.history import Numbers
from flexfl.report.records import Record
from flexfl.report.states import State, StateGrid, States
from traces import RoundAvailability, Trace

MOST_EVALUATED = 200_000_000  # clients x rounds of a trace that are evaluated; of more, some rounds
BY_REASON = {"dropped in mid-round": State.DROPPED, "reply lost": State.LOST, LATE: State.LATE}


@dataclass(frozen=True)
class Participation:
    """The states of the clients in the rounds of a run or of a trace.

    Attributes
    ----------
    grid
        The states.
    rounds
        Those that were looked at.
    online, took_part
        Share of the members in these rounds; NaN without members or where it is not known.
    hours
        Virtual hours at their ends; None if the trace has no clock.
    notes
        Sentences on what is shown.
    """

    grid: StateGrid
    rounds: list[int]
    online: Numbers
    took_part: Numbers
    hours: Numbers | None
    notes: list[str]


def try_trace(settings: Settings) -> Trace | str:
    """Return the trace that the settings name, or why it cannot be made."""
    try:
        if needs_data(settings) and (missing := missing_folder(settings)) is not None:
            return f"it depends on the data, which are not in {missing}"
        return make_trace(settings)
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def looked_at(num_clients: int, rounds: Sequence[int]) -> list[int]:
    """Return the rounds that a report looks at: all, or of very many an even sample."""
    most = max(1, MOST_EVALUATED // max(1, num_clients))
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, most).round().astype(int).tolist()]


def of_run(records: Sequence[Record], settings: Settings, trace: Trace | str) -> Participation | None:
    """Return who took part; None if no round was recorded.

    Parameters
    ----------
    records
        Of the rounds.
    settings
        Of the run.
    trace
        The trace that it names, or why it cannot be made: then the records alone tell.
    """
    by_round = {record["round"]: record for record in records if record["round"] > 0}
    if not by_round:
        return None
    n, notes = settings.num_clients, []
    rounds = looked_at(n, sorted(by_round))
    if len(rounds) < len(by_round):
        notes.append(f"Of the {len(by_round):,} rounds, {len(rounds):,} at even distances are shown.")
    if isinstance(trace, str):
        notes.append(
            f"The trace cannot be made here ({trace}): who was not asked may have been offline, not selected "
            "or no member."
        )
    planned = _planned(records, settings)
    if settings.local_epochs:
        notes.append("Complete: as many steps as the client did in any round.")
    grid = StateGrid(n, rounds)
    shares = np.full((2, len(rounds)), np.nan)
    for column, t in enumerate(rounds):
        record = by_round[t]
        now = None if isinstance(trace, str) else trace.round(t)
        grid.add(t, states_of(record, now, n, planned))
        active = len(record.get("active", []))
        if now is None:
            shares[1, column] = active / n
        elif members := int(now.member.sum()):
            shares[:, column] = int(now.online.sum()) / members, active / members
    if grid.step > 1:
        notes.append(f"Of the {n:,} clients, every {grid.step}th is shown.")
    hours = np.array([by_round[t].get("virtual_seconds") or np.nan for t in rounds]) / 3600
    has_clock = bool(np.isfinite(hours).all())
    return Participation(grid, rounds, shares[0], shares[1], hours if has_clock else None, notes)


def states_of(
    record: Record, now: RoundAvailability | None, num_clients: int, planned: NDArray[np.int64] | int
) -> States:
    """Return the state of each client in a round, shape (N,).

    Parameters
    ----------
    record
        Of the round.
    now
        What the trace says of it; None if that is not known.
    num_clients
        N.
    planned
        E, or that of each client.
    """
    states: States = np.full(num_clients, State.NOT_SELECTED, np.int8)
    if now is not None:
        states[~now.online] = State.OFFLINE
        states[~now.member] = State.ABSENT
    states[_clients(record.get("at_work"), num_clients)] = State.LATE
    states[_clients(record.get("selected"), num_clients)] = State.DROPPED  # until something is known
    for name, reason in (record.get("failed") or {}).items():
        if name.isdecimal() and int(name) < num_clients:
            states[int(name)] = BY_REASON.get(reason, State.REJECTED)
    active = _clients(record.get("active"), num_clients)
    steps = record.get("steps") or []
    if len(active) and len(steps) == len(active):
        done = np.array([np.inf if s is None else s for s in steps], np.float64)  # not reported: all
        own = planned if isinstance(planned, int) else planned[active]
        states[active] = np.where(done >= own, State.COMPLETE, State.INCOMPLETE)
    else:
        states[active] = State.COMPLETE
    return states


def _clients(names: Sequence[int | str] | None, num_clients: int) -> NDArray[np.intp]:
    """Return the clients among names, which under Flower may be anything."""
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
