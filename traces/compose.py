"""Several traces at once."""

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, Trace


class Combined(Trace):
    """All of several traces hold at once: `diurnal:period=100+pools:first=5+lost:p=0.05`.

    A client is a member, or online, where it is so in every trace; it finishes the product of its completions
    (each trace leaves it a share of what the others leave); its reply is lost where one of them loses it.

    Parameters
    ----------
    *traces : Trace
        At least one, all of as many clients.

    Raises
    ------
    ValueError
        If there is no trace, the numbers of clients differ, or two traces are of one kind: made from one
        seed, they would draw the same.
    """

    def __init__(self, *traces: Trace) -> None:
        if len({trace.num_clients for trace in traces}) != 1:
            raise ValueError("trace: combine one or more traces, all with the same number of clients")
        kinds = [type(trace).__name__ for trace in traces]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"trace: {kind} occurs twice in a combination, use each kind of trace once")
        self.num_clients = traces[0].num_clients
        self._traces = traces

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        member, online, completion = self._traces[0].round(t)
        for trace in self._traces[1:]:
            more = trace.round(t)
            member &= more.member
            online &= more.online
            completion *= more.completion
        return RoundAvailability(member, online, completion)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return whose reply gets lost in at least one of the traces (see `Trace.lost`)."""
        return np.asarray(np.any([trace.lost(t) for trace in self._traces], axis=0))

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds at the end of round t by the slowest clock (see `Trace.seconds`)."""
        clocks = [trace.seconds(t) for trace in self._traces]
        return max((seconds for seconds in clocks if seconds is not None), default=None)
