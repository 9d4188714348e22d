"""Draws by number: each depends on the seed, its purpose, a client and a number, not on other draws."""

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Draws:
    """The draws for one purpose, of which each client has a SplitMix64 generator of its own.

    Unlike a generator of NumPy, it returns any of its numbers at once (Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014), for many clients together.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        sequence = np.random.SeedSequence([seed, *f"trace-{purpose}".encode()])
        self._key = sequence.generate_state(1, np.uint64)

    def uniform(self, clients: NDArray[np.intp], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return one draw for each pair of a client and a number from 0 on, from 0 to 1, both excluded."""
        start = _mixed(self._key + clients.astype(np.uint64) * _GAMMA)
        bits = _mixed(start + numbers.astype(np.uint64) * _GAMMA)
        return ((bits >> np.uint64(12)) + 0.5) / 2**52


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's outputs for some states."""
    for shift, factor in _ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))
