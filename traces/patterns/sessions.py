"""Sessions that are drawn instead of recorded, on the virtual clock."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, NotNegative, Positive, Share, checked
from traces.base import check_kind
from traces.draws import Draws
from traces.patterns.spells import Lengths, Spells
from traces.timed import TimedTrace

_OWN = {"always": (), "exponential": ("on", "off"), "slots": ("seconds", "p")}


class DrawnSessions(TimedTrace):
    """Clients that come and go on a virtual clock (see `TimedTrace`): always, exponential or slots.

    With `exponential`, spells online and offline alternate, whose lengths are exponential with the means `on`
    and `off`; a fraction on / (on + off) is online at the start, and at any time. With `slots`, a client is
    online in each slot of some seconds with probability p, independently of the others.

    Parameters
    ----------
    kind
        How clients come and go.
    on, off
        Mean length of a spell in seconds, for `exponential`.
    seconds
        Length of a slot, for `slots`.
    p
        Probability of being online in a slot.
    round_seconds
        Seconds from the start of a round to the start of the next; in event time only for `speed`.
    deadline
        Seconds after the start of a round, or in event time of a task, by which replies must arrive; 0: the
        end of the round, or none.
    on_interrupt
        What happens when a client leaves.
    late
        Whether clients continue after the deadline.
    partial
        Whether incomplete work counts; otherwise the client has dropped out.
    local_steps
        E, local steps of a complete client; the run's --local-steps unless given.
    speed
        Steps per second, the median over clients; 0: a client that is online throughout just meets the
        deadline.
    spread
        Standard deviation of the logarithm of the speeds, which are log-normal; 0: all clients are equal.
    """

    name = "sessions"

    @checked
    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        kind: Literal["always", "exponential", "slots"] = "exponential",
        on: Positive = 3600.0,
        off: Positive = 7200.0,
        seconds: Positive = 600.0,
        p: Share = 0.5,
        round_seconds: Positive = 600.0,
        deadline: NotNegative = 0.0,
        on_interrupt: Literal["stop", "pause"] = "stop",
        late: bool = False,
        partial: bool = True,
        local_steps: Count = 10,
        speed: NotNegative = 0.0,
        spread: NotNegative = 0.0,
    ) -> None:
        check_kind("sessions", DrawnSessions, kind, _OWN, {"on": on, "off": off, "seconds": seconds, "p": p})
        by_kind: dict[str, tuple[float, Lengths]] = {
            "always": (1.0, _forever),
            "exponential": (on / (on + off), lambda *spells: _exponential(on, off, *spells)),
            "slots": (p, lambda *spells: _slots(seconds, p, *spells)),
        }
        super().__init__(
            num_clients,
            seed,
            round_seconds=round_seconds,
            deadline=deadline,
            on_interrupt=on_interrupt,
            late=late,
            partial=partial,
            local_steps=local_steps,
            speed=speed,
            spread=spread,
        )
        self._sessions = Spells(num_clients, Draws(seed, "sessions"), *by_kind[kind])
        self._recorded = np.broadcast_to(np.nan, num_clients)


def _forever(drawn: NDArray[np.float64], online: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.full(len(drawn), np.inf)


def _exponential(
    on: float, off: float, drawn: NDArray[np.float64], online: NDArray[np.bool_]
) -> NDArray[np.float64]:
    return -np.log(drawn) * np.where(online, on, off)


def _slots(
    seconds: float, p: float, drawn: NDArray[np.float64], online: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the lengths of runs of equal slots: geometric."""
    with np.errstate(divide="ignore"):
        more = np.log(drawn) / -np.abs(np.log(np.where(online, p, 1 - p)))  # infinite for probability 1
    return seconds * (1 + np.floor(np.abs(more)))
