"""Replies that are lost, or come one or several rounds late."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Range, Share
from traces.base import RoundAvailability, SeededTrace, complete_if_online
from traces.rates import Always


@dataclass(frozen=True, kw_only=True)
class Lost(Always, name="lost"):
    """All clients are online and complete; each reply is lost with probability p. Meant for `...+lost:p=`.

    Attributes
    ----------
    p
        Probability of losing a reply, independently for each client and round.
    """

    role = "loss"
    p: Share = 0.05

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1 - p for all clients (see `Trace.participation`)."""
        return np.full(self.num_clients, 1.0 - self.p)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which replies of round t are lost (see `Trace.lost`)."""
        return self.rng("lost", t).random(self.num_clients, np.float32) < np.float32(self.p)


@dataclass(frozen=True, kw_only=True)
class Late(SeededTrace, name="late"):
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

    def delay(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies to tasks of round t are late (see `Trace.delay`)."""
        drawn = self.rng("late", t).random((self.num_clients, 2), dtype=np.float32)
        rounds = 1 + (drawn[:, 1] * self.rounds).astype(np.int32)
        return np.where(drawn[:, 0] < self.p, np.minimum(rounds, self.rounds), 0).astype(np.int32)
