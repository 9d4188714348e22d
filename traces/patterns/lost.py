"""Replies that are lost."""

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import Probability, SeededTrace, check_probability


class Lost(SeededTrace):
    """All clients are online and complete; each reply is lost with probability p. Meant for `...+lost:p=`.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    p : float
        Probability of losing a reply, 0..1, independently for each client and round.

    Raises
    ------
    ValueError
        If p is outside 0..1.
    """

    def __init__(self, num_clients: int, seed: int, *, p: Probability = 0.05) -> None:
        super().__init__(num_clients, seed)
        self.p = check_probability("lost", "p", p)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1 - p for all clients (see `Trace.participation`)."""
        check_round(t)
        return np.full(self.num_clients, 1.0 - self.p)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which replies of round t are lost (see `Trace.lost`)."""
        check_round(t)
        return self.rng("lost", t).random(self.num_clients, np.float32) < np.float32(self.p)
