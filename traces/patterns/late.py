"""Replies that come one or several rounds late."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import Range, Share
from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import SeededTrace


@dataclass(frozen=True, kw_only=True)
class Late(SeededTrace):
    """All clients are online and complete; each reply is late with probability p. Meant for `...+late:p=`.

    A late reply comes 1 to `rounds` rounds after the round of its task, each as likely as the others. Until
    then the client gets no new task.

    Attributes
    ----------
    p
        Probability that a reply is late, independently for each client and round.
    rounds
        By how many rounds a reply is late at most; they are counted in 32 bits.
    """

    p: Share = 0.1
    rounds: Annotated[int, Range(least=1, most=1_000_000_000)] = 3

    has_late_replies = True

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies to tasks of round t are late (see `Trace.late`)."""
        check_round(t)
        drawn = self.rng("late", t).random((self.num_clients, 2), dtype=np.float32)
        rounds = 1 + (drawn[:, 1] * self.rounds).astype(np.int32)
        return np.where(drawn[:, 0] < self.p, np.minimum(rounds, self.rounds), 0).astype(np.int32)
