"""The three dropout patterns of Sun et al., "MimiC", IEEE TMC 2024, section 7.1, and of the authors' code."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import Count, Probability, SeededTrace, check_at_least, check_choice, check_probability

_LEVELS = 5
_SCALE = 3.0  # of the half-normal periods in the authors' code
_MINIMUM = 2  # clients online in every round of the authors' code

Variant = Literal["paper", "half-normal"]


class RoundRobin(SeededTrace):
    """Client i is online once every tau_i rounds: absences are bounded (MimiC 7.1, scenario 1).

    `paper`: tau_i is uniform on 0..tau_max (0, like 1, means always online), and the phase of each client's
    cycle is uniform as well, so that clients take turns. `half-normal`, the authors' code: tau_i =
    min(round(3 abs(z)), tau_max) with z standard normal, all cycles start in round 1 with all clients online,
    and if fewer than two clients are online, two drawn at random replace them.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    tau_max : int
        Longest cycle in rounds, at least 1; no client is offline for tau_max rounds in a row. The paper uses
        20, 50 and 100.
    variant : str
        `paper` or `half-normal`.

    Attributes
    ----------
    tau : (N,) int64
        Each client's cycle in rounds, at least 1.

    Raises
    ------
    ValueError
        If tau_max < 1 or the variant is unknown.
    """

    def __init__(
        self, num_clients: int, seed: int, *, tau_max: Count = 20, variant: Variant = "paper"
    ) -> None:
        super().__init__(num_clients, seed)
        check_at_least("round-robin", "tau-max", tau_max, 1)
        check_choice("round-robin", "variant", variant, Variant)
        rng = self.rng("round-robin", 0)
        if variant == "paper":
            drawn = rng.integers(tau_max + 1, size=num_clients)
        else:
            drawn = np.rint(np.abs(rng.standard_normal(num_clients)) * _SCALE).astype(np.int64)
        self.tau: NDArray[np.int64] = np.clip(drawn, 1, tau_max)
        self._phase: NDArray[np.int64] | None = None
        if variant == "paper":
            self._phase = self.rng("round-robin-phase", 0).integers(self.tau)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        if self._phase is not None:
            return complete_if_online((t - 1) % self.tau == self._phase)
        return complete_if_online(_at_least_two((t - 1) % self.tau == 0, self.rng("round-robin-two", t)))


class Levels(SeededTrace):
    """Five static probabilities of being online: client i has lowest + (i mod 5) (1 - lowest) / 4.

    MimiC 7.1, scenario 2, has one probability for all clients (`bernoulli`); the five levels, up to 1, are
    those of the authors' code (`static`). As there, if fewer than two clients are online, two drawn at random
    replace them.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    lowest : float
        Probability of clients 0, 5, 10, ...

    Raises
    ------
    ValueError
        If `lowest` is outside 0..1.
    """

    def __init__(self, num_clients: int, seed: int, *, lowest: Probability = 0.1) -> None:
        super().__init__(num_clients, seed)
        check_probability("levels", "lowest", lowest)
        level = np.arange(num_clients) % _LEVELS
        self.p = np.asarray(lowest + level * (1 - lowest) / (_LEVELS - 1), np.float32)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        online = self.rng("levels", t).random(self.num_clients, np.float32) < self.p
        return complete_if_online(_at_least_two(online, self.rng("levels-two", t)))


class TimeVarying(SeededTrace):
    """A fixed number of clients, drawn each round with random weights (MimiC 7.1, scenario 3).

    In each round every client draws a weight a_i uniformly from [1, 10]; then P N clients are drawn without
    replacement, one after the other, with probabilities proportional to the weights.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    share : float
        P; the number of online clients is P N rounded down, at least 1.

    Raises
    ------
    ValueError
        If `share` is outside 0..1.
    """

    def __init__(self, num_clients: int, seed: int, *, share: Probability = 0.5) -> None:
        super().__init__(num_clients, seed)
        check_probability("time-varying", "share", share)
        self.count = max(1, int(share * num_clients + 1e-9))  # 0.29 * 100 is 28.999...

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
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
