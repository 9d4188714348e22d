"""Clients that are always online, or online independently with equal probability."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Share
from traces.base import RoundAvailability, SeededTrace, complete_if_online


@dataclass(frozen=True)
class Always(SeededTrace):
    """Every client is online in every round and completes all its steps."""

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1 for all clients (see `Trace.participation`)."""
        return np.ones(self.num_clients)


@dataclass(frozen=True, kw_only=True)
class Bernoulli(SeededTrace):
    """Every client is online with probability p, independently in every round.

    Online clients complete all their steps.

    Attributes
    ----------
    p
        Probability of being online.
    """

    p: Share = 0.5

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        return complete_if_online(self.rng("bernoulli", t).random(self.num_clients) < self.p)

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return p for all clients (see `Trace.participation`)."""
        return np.full(self.num_clients, self.p)
