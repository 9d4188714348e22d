"""Clients that are online at given rates, and how they come and go: rates times dynamics."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Positive, Range, Share
from fedtide.base.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace, complete_if_online
from traces.patterns.markov import Chains

Numbers = NDArray[np.float64]
Dynamics = Literal["bernoulli", "staircase", "sine", "interleaved", "markov", "cyclic"]

CYCLE = 100  # rounds, in FedAU
_RETURN = 0.05  # largest probability of coming back online in FedAU's Markov chains
_PERIOD = 20  # rounds, of FedAWE's dynamics
_ALPHA = 0.1  # concentration of FedAU's phi
_FLOOR, _MEAN = 0.02, 0.1  # FedAU's


def _sine(p: Numbers, t: int) -> Numbers:
    return np.asarray(p * (0.3 * math.sin(2 * math.pi * ((t - 1) % _PERIOD) / _PERIOD) + 0.7))


PROBABILITIES: dict[str, Callable[[Numbers, int], Numbers]] = {
    "bernoulli": lambda p, t: p,
    "staircase": lambda p, t: p if (t - 1) % _PERIOD < _PERIOD // 2 else 0.4 * p,
    "sine": _sine,
    "interleaved": lambda p, t: np.where(_sine(p, t) < 0.1, 0.0, _sine(p, t)),
}
"""Probabilities in round t by name of the dynamics: ``(p, t) -> (N,) array``.

`bernoulli`: p. The others are those of Xiang et al., "FedAWE", NeurIPS 2024, who count rounds
from 0: `staircase`, p for ten rounds, 0.4 p for the next ten, and so on; `sine`, p (0.3 sin(2 pi (t - 1) /
20) + 0.7); and `interleaved`, the same, but 0 where it is below 0.1.
"""


@dataclass(frozen=True, kw_only=True)
class RateTrace(SeededTrace):
    """Clients that are online at rates p_k, given by a subclass, and complete all their steps.

    Most dynamics are independent draws with the `PROBABILITIES` of the round. The others are those of Wang
    and Ji, "FedAU", ICLR 2024:

    - `markov`: before the next round, an offline client comes back with probability 0.05, and an online one
      goes offline with probability 0.05 (1 / p - 1). If the latter exceeds 1, that is if p < 1 / 21, both are
      divided by it. The chains start in their stationary distribution, in which a client is online with
      probability p.
    - `cyclic`: round(cycle p) rounds online (halves to even), at least one, then the rest of the cycle
      offline, at least one, so that a client with p near 1 has a cycle that is one round longer. The first
      rounds online follow an offset drawn uniformly from 0..inactive-1.

    Attributes
    ----------
    dynamics
        How clients come and go.
    cycle
        Length of a cycle in rounds, for dynamics `cyclic`.
    """

    dynamics: Dynamics = "bernoulli"
    cycle: Annotated[int, Range(least=2)] = CYCLE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cycle != CYCLE and self.dynamics != "cyclic":
            raise SettingsError(
                f"trace {self.name}: cycle is {self.cycle}, but {self.dynamics} has no cycle; set "
                "dynamics=cyclic"
            )

    @property
    @abstractmethod
    def rates(self) -> Numbers:
        """Each client's rate, from 0 to 1, shape (N,)."""

    @property
    def drawn_by(self) -> Hashable:
        """What its draws depend on (see `Trace.drawn_by`): the dynamics, whatever the rates are."""
        return RateTrace, self.dynamics if self.dynamics in ("markov", "cyclic") else "independent"

    @property
    def repeats_after(self) -> float:
        return {"bernoulli": 0, "markov": 0, "cyclic": self.cycle}.get(self.dynamics, _PERIOD)

    def participation(self, t: int) -> Numbers:
        """Return the probabilities of round t, or shares of a cycle (see `Trace.participation`)."""
        if self.dynamics == "cyclic":
            active, inactive, _ = self.cycles
            return np.asarray(active / (active + inactive))
        if self.dynamics == "markov":
            return self.rates.copy()
        return PROBABILITIES[self.dynamics](self.rates, t).copy()

    def availability(self, t: int) -> RoundAvailability:
        if self.dynamics == "markov":
            return complete_if_online(self._chains.online(t))
        if self.dynamics == "cyclic":
            active, inactive, offset = self.cycles
            return complete_if_online((t - 1 - offset) % (active + inactive) < active)
        drawn = self.rng("rates-bernoulli", t).random(self.num_clients)
        return complete_if_online(drawn < self.participation(t))

    @cached_property
    def _chains(self) -> Chains:
        p = self.rates
        # Multiplied by p, so that p = 0 does not divide by zero: such a client never comes back.
        scale = np.maximum(p, _RETURN * (1 - p))
        come, go = _RETURN * p / scale, _RETURN * (1 - p) / scale
        return Chains(self._draw, p.astype(np.float32), (1 - come - go).astype(np.float32))

    def _draw(self, t: int) -> NDArray[np.float32]:
        return self.rng("rates-markov", t).random(self.num_clients, np.float32)

    @cached_property
    def cycles(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rounds online and offline in each client's cycle, and the round before the first one online."""
        active = np.maximum(np.rint(self.cycle * self.rates).astype(np.int64), 1)
        inactive = np.maximum(self.cycle - active, 1)
        return active, inactive, self.rng("rates-cyclic", 0).integers(inactive)


@dataclass(frozen=True, kw_only=True)
class Rates(RateTrace, name="rates"):
    """Client k is online at rate p_k; dynamics: bernoulli, staircase, sine, interleaved, markov or cyclic.

    The rates are p for all clients or, with `highest`, drawn uniformly from p..highest. `bernoulli`, `markov`
    and `cyclic` are the dynamics of Wang and Ji, "FedAU", ICLR 2024; `staircase`, `sine` and `interleaved`,
    which lower the rates in some rounds, those of Xiang et al., "FedAWE", NeurIPS 2024: see `RateTrace`.
    Online clients complete all their steps.

    Attributes
    ----------
    p
        Rate of all clients, or the lowest.
    highest
        Highest rate, at least p; 0: the same as p.
    """

    p: Share = 0.1
    highest: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.highest < self.p:
            raise SettingsError(f"trace rates: highest is {self.highest}; it must be at least p, {self.p}")

    @cached_property
    def rates(self) -> Numbers:
        return self.p + ((self.highest or self.p) - self.p) * self.rng("rates", 0).random(self.num_clients)


@dataclass(frozen=True, kw_only=True)
class Labels(RateTrace, name="labels"):
    """Client k is online at a rate p_k that depends on the labels of its data; dynamics as in `rates`.

    Each of the L labels has a weight phi_c, drawn from the seed; nu_kc is its share of client k's data. With
    phi `dirichlet`, phi ~ Dirichlet(0.1) and p_k = max(floor, mean L sum_c nu_kc phi_c), at most 1 (Wang and
    Ji, "FedAU", ICLR 2024). With `uniform`, phi_c is uniform on 0..1 for the first half of the labels and on
    0..0.5 for the others, and p_k = sum_c nu_kc phi_c (Xiang et al., "FedAWE", NeurIPS 2024). Online clients
    complete all their steps.

    Attributes
    ----------
    label_shares : (N, L) float64
        Share of each label in each client's data; rows sum to 1, or to 0 for a client without examples.
    floor
        Lowest rate.
    mean
        Rate of a client with all labels in equal shares. But for the floor, it is the expected mean of
        all rates if the labels are equally frequent.
    phi
        How the weights are drawn; `uniform` has neither floor nor mean.
    """

    label_shares: Numbers = field(compare=False)
    floor: Share = _FLOOR
    mean: Share = _MEAN
    phi: Literal["dirichlet", "uniform"] = "dirichlet"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.label_shares) != self.num_clients:
            given = f"label shares of {len(self.label_shares)} clients are given"
            raise SettingsError(f"trace labels: {given}, for {self.num_clients} clients")
        if self.phi == "uniform" and (self.floor, self.mean) != (_FLOOR, _MEAN):
            raise SettingsError("trace labels: phi=uniform has neither floor nor mean, leave them out")

    @cached_property
    def rates(self) -> Numbers:
        rng, count = self.rng("labels", 0), self.label_shares.shape[1]
        if self.phi == "dirichlet":
            phi = rng.dirichlet(np.full(count, _ALPHA))
            return label_rates(self.label_shares, phi, self.mean * count, self.floor)
        phi = rng.random(count) * np.where(np.arange(count) < count // 2, 1.0, 0.5)
        return label_rates(self.label_shares, phi, 1.0, 0.0)


def label_rates(shares: Numbers, phi: Numbers, scale: float, floor: float) -> Numbers:
    """Return p_k = max(floor, scale sum_c nu_kc phi_c), at most 1, of shares (N, L) and weights (L,)."""
    return np.asarray(np.clip(scale * (shares @ phi), floor, 1.0))


@dataclass(frozen=True)
class Always(SeededTrace, name="always"):
    """Every client is online in every round and completes all its steps."""

    def availability(self, t: int) -> RoundAvailability:
        return complete_if_online(np.ones(self.num_clients, np.bool_))

    def participation(self, t: int) -> Numbers:
        return np.ones(self.num_clients)


@dataclass(frozen=True, kw_only=True)
class Bernoulli(SeededTrace, name="bernoulli"):
    """Every client is online with probability p, independently in every round.

    Online clients complete all their steps.

    Attributes
    ----------
    p
        Probability of being online.
    """

    p: Share = 0.5

    def availability(self, t: int) -> RoundAvailability:
        return complete_if_online(self.rng("bernoulli", t).random(self.num_clients) < self.p)

    def participation(self, t: int) -> Numbers:
        return np.full(self.num_clients, self.p)


@dataclass(frozen=True, kw_only=True)
class Sine(SeededTrace, name="sine"):
    """Every client is online with a probability that oscillates: mean + amplitude sin(2 pi (t-1) / T).

    All clients are in phase and drawn independently; online clients complete all their steps. FLGo's mode
    `SLN` has T = 24, mean 0.5 and amplitude 0.4, times a probability per client: combine it with `+levels`.

    Attributes
    ----------
    period
        T in rounds.
    mean, amplitude
        Mean and amplitude of the probability, which must stay within 0..1.
    """

    period: Positive = 24.0
    mean: Share = 0.5
    amplitude: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mean - abs(self.amplitude) <= self.mean + abs(self.amplitude) <= 1:
            raise SettingsError(
                f"trace sine: mean is {self.mean} and amplitude {self.amplitude}; the probability must stay "
                "from 0 to 1"
            )

    @property
    def repeats_after(self) -> float:
        return self.period

    def availability(self, t: int) -> RoundAvailability:
        p = self.mean + self.amplitude * math.sin(2 * math.pi * (((t - 1) / self.period) % 1))
        return complete_if_online(self.rng("sine", t).random(self.num_clients) < p)
