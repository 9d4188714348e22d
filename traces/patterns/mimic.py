"""The three dropout patterns of Sun et al., "MimiC", IEEE TMC 2024, section 7.1, and of the authors' code."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, Share
from traces.base import RoundAvailability, SeededTrace, complete_if_online

_LEVELS = 5
_SCALE = 3.0  # of the half-normal periods in the authors' code
_MINIMUM = 2  # clients online in every round of the authors' code


@dataclass(frozen=True, kw_only=True)
class RoundRobin(SeededTrace, name="round-robin"):
    """Client i is online once every tau_i rounds: absences are bounded (MimiC 7.1, scenario 1).

    `paper`: tau_i is uniform on 0..tau_max (0, like 1, means always online), and the phase of each client's
    cycle is uniform as well, so that clients take turns. `half-normal`, the authors' code: tau_i =
    min(round(3 abs(z)), tau_max) with z standard normal, all cycles start in round 1 with all clients online,
    and if fewer than two clients are online, two drawn at random replace them.

    Attributes
    ----------
    tau_max
        Longest cycle in rounds; no client is offline for tau_max rounds in a row. The paper uses
        20, 50 and 100.
    variant
        How cycles are drawn, see above.
    """

    tau_max: Count = 20
    variant: Literal["paper", "half-normal"] = "paper"

    @property
    def repeats_after(self) -> float:
        return self.tau_max

    @cached_property
    def tau(self) -> NDArray[np.int64]:
        """Each client's cycle in rounds, at least 1, shape (N,)."""
        rng = self.rng("round-robin", 0)
        if self.variant == "paper":
            drawn = rng.integers(self.tau_max + 1, size=self.num_clients)
        else:
            drawn = np.rint(np.abs(rng.standard_normal(self.num_clients)) * _SCALE).astype(np.int64)
        return np.clip(drawn, 1, self.tau_max)

    @cached_property
    def _phase(self) -> NDArray[np.int64]:
        return self.rng("round-robin-phase", 0).integers(self.tau)

    def availability(self, t: int) -> RoundAvailability:
        if self.variant == "paper":
            return complete_if_online((t - 1) % self.tau == self._phase)
        return complete_if_online(_at_least_two((t - 1) % self.tau == 0, self.rng("round-robin-two", t)))


@dataclass(frozen=True, kw_only=True)
class Levels(SeededTrace, name="levels"):
    """Five static probabilities of being online: client i has lowest + (i mod 5) (1 - lowest) / 4.

    MimiC 7.1, scenario 2, has one probability for all clients (`bernoulli`); the five levels, up to 1, are
    those of the authors' code (`static`). As there, if fewer than two clients are online, two drawn at random
    replace them.

    Attributes
    ----------
    lowest
        Probability of clients 0, 5, 10, ...
    """

    lowest: Share = 0.1

    @cached_property
    def p(self) -> NDArray[np.float32]:
        """Each client's probability, shape (N,)."""
        level = np.arange(self.num_clients) % _LEVELS
        return np.asarray(self.lowest + level * (1 - self.lowest) / (_LEVELS - 1), np.float32)

    def availability(self, t: int) -> RoundAvailability:
        online = self.rng("levels", t).random(self.num_clients, np.float32) < self.p
        return complete_if_online(_at_least_two(online, self.rng("levels-two", t)))


@dataclass(frozen=True, kw_only=True)
class TimeVarying(SeededTrace, name="time-varying"):
    """A fixed number of clients, drawn each round with random weights (MimiC 7.1, scenario 3).

    In each round every client draws a weight a_i uniformly from [1, 10]; then P N clients are drawn without
    replacement, one after the other, with probabilities proportional to the weights.

    Attributes
    ----------
    share
        P; the number of online clients is P N rounded down, at least 1.
    """

    share: Share = 0.5

    @property
    def count(self) -> int:
        """How many clients are online."""
        return max(1, int(self.share * self.num_clients + 1e-9))  # 0.29 * 100 is 28.999...

    def availability(self, t: int) -> RoundAvailability:
        rng = self.rng("time-varying", t)
        weights = rng.random(self.num_clients, np.float32)
        weights *= 9
        weights += 1
        # The smallest of exponential variables with rates a_i are such a sample (Efraimidis, Spirakis 2006).
        keys = rng.standard_exponential(self.num_clients, np.float32)
        keys /= weights
        largest = np.partition(keys, self.count - 1)[self.count - 1]
        online = keys <= largest
        surplus = np.count_nonzero(online) - self.count  # ties with the largest key
        online[np.flatnonzero(keys == largest)[:surplus]] = False
        return complete_if_online(online)


def _at_least_two(online: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return who is online, or two clients drawn at random if fewer than two are."""
    minimum = min(_MINIMUM, len(online))
    if np.count_nonzero(online) < minimum:
        online = np.zeros_like(online)
        online[rng.choice(len(online), minimum, replace=False)] = True
    return online
