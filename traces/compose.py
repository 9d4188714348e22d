"""Several traces combined into one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from traces.base import RoundAvailability, Trace, availability_in
from traces.patterns.min_separation import MinSeparation
from traces.patterns.speeds import Speeds
from traces.timed import TimedTrace


class Combined(Trace):
    """Several traces that hold at once, as in `diurnal:period=100+pools:first=5+lost:p=0.05`.

    A client is a member if it is one in every trace, and online if it is online in every trace. Its
    completions are multiplied: each trace leaves it a fraction of what the others leave. Its reply is lost if
    one of the traces loses it, and late by the largest of their delays. `Speeds` are those of the traces with
    a clock. `MinSeparation` is about who takes part in what the other traces make.

    ValueError: there is no trace, the numbers of clients differ, or two traces are of the same kind, whose
    draws would be identical.

    Attributes
    ----------
    parts : tuple of Trace
        The traces; `Speeds` are no part beside a trace with a clock, which then has them.
    """

    def __init__(self, *traces: Trace) -> None:
        if len({trace.num_clients for trace in traces}) != 1:
            raise SettingsError("trace: combine one or more traces, all with the same number of clients")
        first: dict[type[Trace], str] = {}
        for trace in traces:
            name = trace.label or type(trace).__name__
            if (kind := type(trace)) in first:
                raise SettingsError(
                    f"trace: {first[kind]} and {name} would draw the same, use one trace of each kind"
                )
            first[kind] = name
        self.num_clients = traces[0].num_clients
        self.has_late_replies = any(trace.has_late_replies for trace in traces)
        self.devices = next((trace.devices for trace in traces if trace.devices), ())
        self.dates = next((trace.dates for trace in traces if trace.dates), None)
        self.parts = _with_speeds(traces)
        self._separation = next((trace for trace in traces if isinstance(trace, MinSeparation)), None)
        self._others = [trace for trace in self.parts if trace is not self._separation]

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        if self._separation is None or not self._others:
            return self._round(self.parts, t)
        member, online, completion = self._round(self._others, t)
        rested = self._separation.rested(t, self._would_take_part)
        return RoundAvailability(member, online & rested, completion * rested)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which replies are lost in at least one of the traces (see `Trace.lost`)."""
        return np.asarray(np.any([trace.lost(t) for trace in self.parts], axis=0))

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies are late at most (see `Trace.late`)."""
        return np.asarray(np.max([trace.late(t) for trace in self.parts], axis=0))

    def participation(self, t: int) -> NDArray[np.float64] | None:
        """Return the product of the traces' probabilities, if all are known (see `Trace.participation`)."""
        parts = [trace.participation(t) for trace in self.parts]
        known = [part for part in parts if part is not None]
        return np.asarray(np.prod(known, axis=0)) if len(known) == len(parts) else None

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds at the end of round t on the slowest clock (see `Trace.seconds`)."""
        clocks = [trace.seconds(t) for trace in self.parts]
        return max((seconds for seconds in clocks if seconds is not None), default=None)

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


def _with_speeds(traces: tuple[Trace, ...]) -> tuple[Trace, ...]:
    """Give speeds to the traces with a clock, if there are both."""
    speeds = next((trace for trace in traces if isinstance(trace, Speeds)), None)
    if speeds is None or not any(isinstance(trace, TimedTrace) for trace in traces):
        return traces
    others = [trace for trace in traces if trace is not speeds]
    return tuple(t.with_speeds(speeds) if isinstance(t, TimedTrace) else t for t in others)
