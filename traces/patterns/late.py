"""Replies that come one or several rounds late."""

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import Count, Probability, SeededTrace, check_at_least, check_probability

MOST_ROUNDS = 1_000_000_000  # they are counted in 32 bits


class Late(SeededTrace):
    """All clients are online and complete; each reply is late with probability p. Meant for `...+late:p=`.

    A late reply comes 1 to `rounds` rounds after the round of its task, each as likely as the others. Until
    then the client gets no new task.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    p : float
        Probability that a reply is late, 0..1, independently for each client and round.
    rounds : int
        By how many rounds a reply is late at most.

    Raises
    ------
    ValueError
        If p is outside 0..1 or `rounds` is below 1.
    """

    has_late_replies = True

    def __init__(self, num_clients: int, seed: int, *, p: Probability = 0.1, rounds: Count = 3) -> None:
        super().__init__(num_clients, seed)
        self.p = check_probability("late", "p", p)
        check_at_least("late", "rounds", rounds, 1)
        if rounds > MOST_ROUNDS:
            raise ValueError(f"trace late: rounds is {rounds}, give at most {MOST_ROUNDS:,}")
        self.rounds = rounds

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies to tasks of round t are late (see `Trace.late`)."""
        check_round(t)
        drawn = self.rng("late", t).random((self.num_clients, 2), dtype=np.float32)
        rounds = 1 + (drawn[:, 1] * self.rounds).astype(np.int32)
        return np.where(drawn[:, 0] < self.p, np.minimum(rounds, self.rounds), 0).astype(np.int32)
