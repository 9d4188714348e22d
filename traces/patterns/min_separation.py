"""Minimum separation: whoever has taken part rests for some rounds.

Sun et al. 2025, "Debiasing Federated Learning with Correlated Client Participation", ICLR: the longer clients
rest, the less their shares of the participations differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count
from traces.base import RoundAvailability, SeededTrace, complete_if_online


@dataclass(frozen=True, kw_only=True)
class MinSeparation(SeededTrace, name="min-separation"):
    """Whoever took part in round t is offline up to round t + R - 1. Meant for `...+min-separation:R=`.

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
        """Return the availability in round t (see `Trace.round`)."""
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
