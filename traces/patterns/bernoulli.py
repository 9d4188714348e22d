"""Clients that are always online, or online independently with equal probability."""

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import Probability, SeededTrace, check_probability


class Always(SeededTrace):
    """Every client is online in every round and completes all its steps.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Not used: nothing is drawn.
    """

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1 for all clients (see `Trace.participation`)."""
        check_round(t)
        return np.ones(self.num_clients)


class Bernoulli(SeededTrace):
    """Every client is online with probability p, independently in every round.

    Online clients complete all their steps.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    p : float
        Probability of being online, 0..1.

    Raises
    ------
    ValueError
        If p is outside 0..1.
    """

    def __init__(self, num_clients: int, seed: int, *, p: Probability = 0.5) -> None:
        super().__init__(num_clients, seed)
        self.p = check_probability("bernoulli", "p", p)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(self.rng("bernoulli", t).random(self.num_clients) < self.p)

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return p for all clients (see `Trace.participation`)."""
        check_round(t)
        return np.full(self.num_clients, self.p)
