"""Several traces combined into one, in rounds and in event time."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.base import Role, RoundAvailability, Trace, availability_in
from traces.clock import TimedTrace
from traces.membership import Membership
from traces.patterns.sessions import ComeAndGo

_WITH_CLOCK = "one of phones, recorded, flash, flhetbench, fta, sessions or speeds"


def combined(traces: Sequence[Trace]) -> Trace:
    """Return the trace of all that hold at once; a single one stays as it is."""
    return traces[0] if len(traces) == 1 else Combined(*traces)


class Combined(Trace):
    """Several traces that hold at once, as in `diurnal:period=100+pools:first=5+lost:p=0.05`.

    A client is a member if it is one in every trace, and online if it is online in every trace. Its
    completions are multiplied: each trace leaves it a fraction of what the others leave. Its reply is lost if
    one of the traces loses it, and late by the largest of their delays. Speeds are those of the traces with
    a clock. A filter is about who takes part in what the other traces make.

    ValueError: there is no trace, the numbers of clients differ, or two traces would draw the same.

    Attributes
    ----------
    parts : tuple of Trace
        The traces; speeds are no part beside a trace with a clock, which then has them.
    """

    def __init__(self, *traces: Trace) -> None:
        if len({trace.num_clients for trace in traces}) != 1:
            raise SettingsError("trace: combine one or more traces, all with the same number of clients")
        first: dict[Hashable, Trace] = {}
        for trace in traces:
            if (other := first.setdefault(trace.drawn_by, trace)) is not trace:
                both = f"{other.name} and {trace.name}"
                raise SettingsError(f"trace: {both} would draw the same, use one trace of each kind")
        self.num_clients = traces[0].num_clients
        self.has_late_replies = any(trace.has_late_replies for trace in traces)
        self.devices = next((trace.devices for trace in traces if trace.devices), ())
        self.dates = next((trace.dates for trace in traces if trace.dates), None)
        self.parts = _with_speeds(traces)
        self._filters = [trace for trace in self.parts if trace.role == "filter"]
        self._others = [trace for trace in self.parts if trace.role != "filter"]

    @property
    def repeats_after(self) -> float:
        return max(trace.repeats_after for trace in self.parts)

    def round(self, t: int) -> RoundAvailability:
        if not self._filters or not self._others:
            return self._round(self.parts, t)
        member, online, completion = self._round(self._others, t)
        filters: list[Any] = self._filters
        for trace in filters:
            rested = trace.rested(t, self._would_take_part)
            online, completion = online & rested, completion * rested
        return RoundAvailability(member, online, completion)

    def lost(self, t: int) -> NDArray[np.bool_]:
        return np.asarray(np.any([trace.lost(t) for trace in self.parts], axis=0))

    def delay(self, t: int) -> NDArray[np.int32]:
        return np.asarray(np.max([trace.delay(t) for trace in self.parts], axis=0))

    def participation(self, t: int) -> NDArray[np.float64] | None:
        parts = [trace.participation(t) for trace in self.parts]
        known = [part for part in parts if part is not None]
        return np.asarray(np.prod(known, axis=0)) if len(known) == len(parts) else None

    def ends(self, t: int) -> int | None:
        return max((end for trace in self.parts if (end := trace.ends(t)) is not None), default=None)

    @staticmethod
    def _round(traces: Sequence[Trace], t: int) -> RoundAvailability:
        """Return what traces have in common."""
        member, online, completion = availability_in(traces[0], t)
        for trace in traces[1:]:
            other = availability_in(trace, t)
            member &= other.member
            online &= other.online
            completion *= other.completion
        return RoundAvailability(member, online, completion)

    def _would_take_part(self, t: int) -> NDArray[np.bool_]:
        """Return who takes part in round t where nobody rests, shape (N,)."""
        now = self._round(self._others, t)
        return now.online & (now.completion > 0) & ~self.lost(t)


def parts_of(trace: Trace, role: Role | None = None) -> list[Any]:
    """Return the parts of a trace, or the trace itself: all, or those with a role."""
    parts = trace.parts if isinstance(trace, Combined) else (trace,)
    return [part for part in parts if role in (None, part.role)]


def _with_speeds(traces: tuple[Trace, ...]) -> tuple[Trace, ...]:
    """Give speeds to the traces with a clock, if there are both."""
    speeds: list[Any] = [trace for trace in traces if trace.role == "speeds"]
    if not speeds or all(trace.role != "clock" for trace in traces):
        return traces
    others: list[Any] = [trace for trace in traces if trace.role != "speeds"]
    return tuple(part.with_speeds(speeds[0]) if part.role == "clock" else part for part in others)


@dataclass(frozen=True)
class Timeline:
    """A trace in event time: who is online at any moment, and who is a member. See `timeline`."""

    clock: TimedTrace
    membership: Membership

    def availability(self, t: int, now: int) -> RoundAvailability:
        """Return who is a member and online in round t if it begins now, at work or not."""
        begin, end = self.membership.window(t)
        member = (begin <= now) & (now < end)
        online = member & self.clock.is_online(now)
        return RoundAvailability(member, online, online.astype(np.float32))


def timeline(trace: Trace) -> Timeline:
    """Return a trace in event time, whose rounds end with replies and have no fixed length.

    It may consist of one trace with a clock, speeds, lost replies, and membership; with speeds alone, all
    clients are always online. ValueError: it has anything else, which has a meaning in rounds only, or
    replies that are late by rounds.
    """
    for part in parts_of(trace):
        if part.has_late_replies:
            raise SettingsError(
                "trace: in event time, what is not done in a round is late anyway, leave late out"
            )
        if part.role not in ("clock", "speeds", "loss", "members"):
            raise SettingsError(
                f"trace: {part.name} is defined by rounds, and they have no fixed length in event time "
                f"(round-ends); take {_WITH_CLOCK} instead"
            )
    clocks = parts_of(trace, "clock")
    for speeds in parts_of(trace, "speeds"):
        everybody = ComeAndGo(trace.num_clients, speeds.seed, kind="always", local_steps=speeds.local_steps)
        clocks.append(everybody.with_speeds(speeds))
    if len(clocks) != 1:
        found = " and ".join(clock.name for clock in clocks) or "none"
        raise SettingsError(
            f"trace: event time needs one trace with a clock, here is {found}: take {_WITH_CLOCK}"
        )
    members = parts_of(trace, "members") or [Membership(trace.num_clients, {}, {})]
    return Timeline(clocks[0], members[-1])
