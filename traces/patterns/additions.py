"""What is added to another trace: replies that are lost or late, and clients that rest."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, Range, Share
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
        return np.full(self.num_clients, 1.0 - self.p)

    def lost(self, t: int) -> NDArray[np.bool_]:
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
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def delay(self, t: int) -> NDArray[np.int32]:
        drawn = self.rng("late", t).random((self.num_clients, 2), dtype=np.float32)
        rounds = 1 + (drawn[:, 1] * self.rounds).astype(np.int32)
        return np.where(drawn[:, 0] < self.p, np.minimum(rounds, self.rounds), 0).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class MinSeparation(SeededTrace, name="min-separation"):
    """Whoever took part in round t is offline up to round t + R - 1. Meant for `...+min-separation:R=`.

    Sun et al. 2025, "Debiasing Federated Learning with Correlated Client Participation", ICLR: the longer
    clients rest, the less their shares of the participations differ.

    Taking part is being online, finishing a step, and having a reply that is not lost, as if all were asked
    who are online. On its own, all clients take part together, once in R rounds.

    Attributes
    ----------
    R
        Rounds from one participation to the next, at least; with 1, the trace changes nothing. The paper's R
        is one less: the rounds in between.
    """

    role = "filter"
    R: Count = 5

    def availability(self, t: int) -> RoundAvailability:
        everyone = np.ones(self.num_clients, np.bool_)
        return complete_if_online(self.rested(t, lambda t: everyone))

    def rested(self, t: int, would: Callable[[int], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return who may be online in round t, shape (N,).

        `would` returns who would take part in a round, but for the rest; it is asked about earlier rounds.
        """
        past = self._past
        if t < past.next:
            past.next, past.last[:] = 1, 1 - self.R
        while past.next < t:
            takes_part = would(past.next) & (past.next - past.last >= self.R)
            past.last[takes_part] = past.next
            past.next += 1
        return np.asarray(t - past.last >= self.R)

    @cached_property
    def _past(self) -> "_Past":
        return _Past(1, np.full(self.num_clients, 1 - self.R, np.int64))


@dataclass
class _Past:
    """What has been followed so far: rounds before `next`, in `last` of which each client took part."""

    next: int
    last: NDArray[np.int64]
