"""The base class of traces with a seed."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fedtide.ground.allowed import Checked, Count, CountOrZero
from traces.base import RoundAvailability, Trace, check_round


@dataclass(frozen=True)
class SeededTrace(Checked, Trace):
    """A trace whose draws depend only on the seed, the purpose of the draw and the round.

    A client's draws do not depend on how many clients come after it: a larger N leaves the first clients
    unchanged. The options of a trace are fields of its subclass; ValueError is raised if one is not allowed.
    """

    num_clients: Count
    seed: CountOrZero

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return self.availability(t)

    @abstractmethod
    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t, which is at least 1."""

    def rng(self, purpose: str, t: int) -> np.random.Generator:
        """Return a new generator for one purpose in round t; t = 0 for draws made once for all rounds."""
        return generator(self.seed, purpose, t)


def generator(seed: int, purpose: str, t: int) -> np.random.Generator:
    """Return a new generator, see `SeededTrace.rng`."""
    return np.random.default_rng([seed, *f"trace-{purpose}".encode(), t])
