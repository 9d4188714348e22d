"""Generated traces in which a client is either offline or finishes all its work."""

import numpy as np

from traces.base import RoundAvailability, check_round
from traces.seeded import SeededTrace


class Always(SeededTrace):
    """Every client is online in every round and finishes all its steps.

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
        n = self.num_clients
        return RoundAvailability(np.ones(n, np.bool_), np.ones(n, np.bool_), np.ones(n, np.float32))


class Bernoulli(SeededTrace):
    """Every client is online with probability p, independently in every round.

    Who is online finishes all its steps.

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
        If p lies outside 0..1.
    """

    def __init__(self, num_clients: int, seed: int, *, p: float = 0.5) -> None:
        super().__init__(num_clients, seed)
        if not 0 <= p <= 1:
            raise ValueError(f"trace bernoulli: p is {p}, give a probability from 0 to 1")
        self.p = p

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        online = self.rng("bernoulli", t).random(self.num_clients) < self.p
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, online.astype(np.float32))
