"""The states of a run's clients by round, from its records and its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import did_you_mean
from fedtide.base.errors import SettingsError
from fedtide.config import Settings
from fedtide.engine.observers import Record
from fedtide.engine.transports.late import LATE
from fedtide.federation import Federation
from traces import RoundAvailability, Trace
from traces.base import microseconds
from traces.compose import timeline

if TYPE_CHECKING:
    import pandas

    from fedtide.engine.read_run import Run

States = NDArray[np.int8]


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


def try_trace(settings: Settings) -> Trace | str:
    """Return the trace that the settings name, or why it cannot be made."""
    try:
        federation = Federation.of(settings.for_clients())
        if federation.trace_needs_data and (missing := federation.missing_folder) is not None:
            return f"it depends on the data, which are not in {missing}"
        return federation.trace
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def availability_of(trace: Trace | str, in_event_time: bool) -> Callable[[Record], RoundAvailability] | str:
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
    states[_clients([client for client, *_ in record.get("stopped") or ()], num_clients)] = State.REJECTED
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


def planned_steps(records: Sequence[Record], settings: Settings) -> NDArray[np.int64] | int:
    """Return E, or for local epochs the most steps that each client did."""
    if not settings.local_epochs:
        return settings.local_steps
    most = np.ones(settings.num_clients, np.int64)
    for record in records:
        active, steps = _clients(record.get("active"), len(most)), record.get("steps") or []
        if len(active) == len(steps):
            most[active] = np.maximum(most[active], [step or 1 for step in steps])
    return most


def history_of(run: Run, client: int | str) -> pandas.DataFrame:
    """Return the rounds of one client; see `Run.client`."""
    import pandas

    number, settings = number_of(run, client), run.settings
    trace = try_trace(settings)
    available = availability_of(trace, settings.round_ends > 0)
    planned = planned_steps(run.records, settings)
    rows = []
    for record in run.records:
        if not record["round"]:
            continue
        now = None if isinstance(available, str) else available(record)
        state = State(states_of(record, now, settings.num_clients, planned)[number])
        steps = dict(zip(record.get("active") or (), record.get("steps") or (), strict=False)).get(number)
        lag = next(
            (late.get("lag") for late in record.get("late") or () if late.get("client") == number), None
        )
        reason = (record.get("failed") or {}).get(str(number), "")
        rows.append((record["round"], state.shown, steps, lag, reason))
    frame = pandas.DataFrame(rows, columns=["round", "state", "steps", "lag", "reason"])
    return frame.astype({"steps": "Int64", "lag": "Int64"}).set_index("round")


def number_of(run: Run, client: int | str) -> int:
    """Return the number of a client, which may be given by name."""
    names, count = run.client_names, run.settings.num_clients
    if client in names:
        return names.index(str(client))
    if str(client).isdecimal() and int(client) < count:
        return int(client)
    hint = did_you_mean(str(client), names) or f"; they are numbered from 0 to {count - 1}"
    raise SettingsError(f"{run.path} has no client {client!r}{hint}")
