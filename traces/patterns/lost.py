"""Replies that are lost."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import Share
from traces.base import check_round
from traces.patterns.bernoulli import Always


@dataclass(frozen=True, kw_only=True)
class Lost(Always):
    """All clients are online and complete; each reply is lost with probability p. Meant for `...+lost:p=`.

    Attributes
    ----------
    p
        Probability of losing a reply, independently for each client and round.
    """

    p: Share = 0.05

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1 - p for all clients (see `Trace.participation`)."""
        check_round(t)
        return np.full(self.num_clients, 1.0 - self.p)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which replies of round t are lost (see `Trace.lost`)."""
        check_round(t)
        return self.rng("lost", t).random(self.num_clients, np.float32) < np.float32(self.p)
