"""How clients with given rates come and go: independently in every round, as Markov chains, or in cycles."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Range
from fedtide.ground.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace, complete_if_online
from traces.patterns.markov import Chains

Rates = NDArray[np.float64]

CYCLE = 100  # rounds, in FedAU
Dynamics = Literal["bernoulli", "staircase", "sine", "interleaved", "markov", "cyclic"]
Cycle = Annotated[int, Range(least=2)]
_RETURN = 0.05  # largest probability of coming back online in FedAU's Markov chains
_PERIOD = 20  # rounds, of FedAWE's dynamics


def _sine(p: Rates, t: int) -> Rates:
    return np.asarray(p * (0.3 * math.sin(2 * math.pi * ((t - 1) % _PERIOD) / _PERIOD) + 0.7))


PROBABILITIES: dict[str, Callable[[Rates, int], Rates]] = {
    "bernoulli": lambda p, t: p,
    "staircase": lambda p, t: p if (t - 1) % _PERIOD < _PERIOD // 2 else 0.4 * p,
    "sine": _sine,
    "interleaved": lambda p, t: np.where(_sine(p, t) < 0.1, 0.0, _sine(p, t)),
}
"""Probabilities in round t by name of the dynamics: ``(p, t) -> (N,) array``.

`bernoulli`: p. The others are those of Xiang et al., "FedAWE", NeurIPS 2024, who count rounds from 0:
`staircase`, p for ten rounds, 0.4 p for the next ten, and so on; `sine`, p (0.3 sin(2 pi (t - 1) / 20) +
0.7); and `interleaved`, the same, but 0 where it is below 0.1.
"""


class RateTrace(SeededTrace):
    """A trace of clients with given rates `p`, from 0 to 1, shape (N,)."""

    def __init__(self, p: Rates, seed: int) -> None:
        super().__init__(len(p), seed)
        self.p = p

    def participation(self, t: int) -> Rates:
        """Return the rates (see `Trace.participation`)."""
        return self.p.copy()


class BernoulliRates(RateTrace):
    """Clients that are online independently of each other and of other rounds, by `PROBABILITIES`."""

    def __init__(self, p: Rates, seed: int, dynamics: str = "bernoulli") -> None:
        super().__init__(p, seed)
        self._probability = PROBABILITIES[dynamics]

    def participation(self, t: int) -> Rates:
        """Return the probabilities of round t (see `Trace.participation`)."""
        return self._probability(self.p, t).copy()

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        p = self.participation(t)
        return complete_if_online(self.rng("rates-bernoulli", t).random(self.num_clients) < p)


class MarkovRates(RateTrace):
    """Clients that stay online, or offline, for several rounds: a two-state Markov chain per client.

    Wang and Ji, "FedAU", ICLR 2024: before the next round, an offline client comes back with probability
    0.05, and an online one goes offline with probability 0.05 (1 / p - 1). If the latter exceeds 1, that is
    if p < 1 / 21, both are divided by it. The chains start in their stationary distribution, in which a
    client is online with probability p.
    """

    def __init__(self, p: Rates, seed: int) -> None:
        super().__init__(p, seed)
        # Multiplied by p, so that p = 0 does not divide by zero: such a client never comes back.
        scale = np.maximum(p, _RETURN * (1 - p))
        come, go = _RETURN * p / scale, _RETURN * (1 - p) / scale
        self._chains = Chains(self._draws, p.astype(np.float32), (1 - come - go).astype(np.float32))

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        return complete_if_online(self._chains.online(t))

    def _draws(self, t: int) -> NDArray[np.float32]:
        return self.rng("rates-markov", t).random(self.num_clients, np.float32)


class CyclicRates(RateTrace):
    """Clients that are online for the same rounds of every cycle.

    Wang and Ji, "FedAU", ICLR 2024: round(cycle p) rounds online (halves to even), at least one, then the
    rest of the cycle offline, at least one, so that a client with p near 1 has a cycle that is one round
    longer. The first rounds online follow an offset drawn uniformly from 0..inactive-1.
    """

    def __init__(self, p: Rates, seed: int, cycle: int = CYCLE) -> None:
        super().__init__(p, seed)
        self.active = np.maximum(np.rint(cycle * p).astype(np.int64), 1)
        self.inactive = np.maximum(cycle - self.active, 1)
        self.offset = self.rng("rates-cyclic", 0).integers(self.inactive)

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        return complete_if_online((t - 1 - self.offset) % (self.active + self.inactive) < self.active)

    def participation(self, t: int) -> Rates:
        """Return the share of a cycle in which clients are online (see `Trace.participation`)."""
        return np.asarray(self.active / (self.active + self.inactive))


def with_dynamics(trace: str, dynamics: Dynamics, cycle: int, p: Rates, seed: int) -> RateTrace:
    """Return the trace of clients with given rates; ValueError if a cycle is set for dynamics without one."""
    if dynamics == "cyclic":
        return CyclicRates(p, seed, cycle)
    if cycle != CYCLE:
        raise SettingsError(
            f"trace {trace}: cycle is {cycle}, but {dynamics} has no cycle; set dynamics=cyclic"
        )
    if dynamics == "markov":
        return MarkovRates(p, seed)
    return BernoulliRates(p, seed, dynamics)
