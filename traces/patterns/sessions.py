"""Sessions that are drawn instead of recorded, on the virtual clock."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Positive, Share
from traces.base import Draws, check_kind
from traces.clock import TimedTrace
from traces.sessions import DrawnSessions

_OWN = {"always": (), "exponential": ("on", "off"), "slots": ("seconds", "p")}


@dataclass(frozen=True, kw_only=True)
class ComeAndGo(TimedTrace, name="sessions"):
    """Clients that come and go on a virtual clock (see `TimedTrace`): always, exponential or slots.

    With `exponential`, spells online and offline alternate, whose lengths are exponential with the means `on`
    and `off`; a fraction on / (on + off) is online at the start, and at any time. With `slots`, a client is
    online in each slot of some seconds with probability p, independently of the others.

    Attributes
    ----------
    kind
        How clients come and go.
    on, off
        Mean length of a spell in seconds, for `exponential`.
    seconds
        Length of a slot, for `slots`.
    p
        Probability of being online in a slot.
    """

    kind: Literal["always", "exponential", "slots"] = "exponential"
    on: Positive = 3600.0
    off: Positive = 7200.0
    seconds: Positive = 600.0
    p: Share = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self, self.kind, _OWN)

    @cached_property
    def sessions(self) -> DrawnSessions:
        share = {"always": 1.0, "exponential": self.on / (self.on + self.off), "slots": self.p}[self.kind]
        return DrawnSessions(self.num_clients, Draws(self.seed, "sessions"), share, self._lengths)

    def _lengths(self, drawn: NDArray[np.float64], online: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the lengths of spells in seconds, given draws from 0 to 1."""
        if self.kind == "always":
            return np.full(len(drawn), np.inf)
        if self.kind == "exponential":
            return -np.log(drawn) * np.where(online, self.on, self.off)
        # Runs of equal slots are geometric.
        with np.errstate(divide="ignore"):
            more = np.log(drawn) / -np.abs(np.log(np.where(online, self.p, 1 - self.p)))  # maybe infinite
        return self.seconds * (1 + np.floor(np.abs(more)))
