"""The participation pools of Ruan et al. (2021): devices that complete a random fraction of their work."""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Range
from traces.base import RoundAvailability, SeededTrace, online_throughout


class Pool(NamedTuple):
    """What slows a device down, and its completions in percent: before clipping, and the smallest."""

    name: str
    mean: float
    sd: float
    floor: float


def load_pools() -> tuple[Pool, ...]:
    """Load the table `pools.toml`, which gives the source of every number."""
    table = tomllib.loads(files("traces.patterns").joinpath("pools.toml").read_text(encoding="utf-8"))
    return tuple(Pool(**pool) for pool in table["pool"])


POOLS = load_pools()


def measured_completions() -> NDArray[np.float32]:
    """Return the completions that `experiments/testbed.py` measured, by pool and round, shape (5, R)."""
    table = json.loads(files("traces.patterns").joinpath("pools_measured.json").read_text(encoding="utf-8"))
    return np.array([pool["shares"] for pool in table["pool"]], np.float32) / np.float32(100)


@dataclass(frozen=True, kw_only=True)
class Pools(SeededTrace):
    """Every client draws its completion each round from one of the first pools of Ruan et al. 2021, Table 2.

    Every client is assigned to a pool once, uniformly at random. With `source=paper` its completion in a
    round is ``clip(mean + sd * z, floor, 1)`` with z standard normal. With `source=measured` it is that of a
    round drawn uniformly from those in which we measured a worker under the pool's load, as the authors did
    with their traces. All clients are always online; a completion of 0 (bandwidth pools only) means that the
    client drops out mid-round.

    Attributes
    ----------
    first
        Number of pools in use (the size of Ruan et al.'s T): more pools, more heterogeneity. Pools
        1..5 are CPU loads, which are never inactive; 6..8 are bandwidths, which were not measured: with
        `source=measured`, 6 to 8 mean 5.
    source
        Where completions come from, see above.
    """

    first: Annotated[int, Range(least=1, most=len(POOLS))] = 8
    source: Literal["paper", "measured"] = "paper"

    @cached_property
    def pool(self) -> NDArray[np.uint8]:
        """Each client's pool, an index into `POOLS`, shape (N,)."""
        count = self.first if self._measured is None else min(self.first, len(self._measured))
        return self.rng("pools-assignment", 0).integers(count, size=self.num_clients, dtype=np.uint8)

    @cached_property
    def _measured(self) -> NDArray[np.float32] | None:
        return measured_completions() if self.source == "measured" else None

    @cached_property
    def _parameters(self) -> tuple[NDArray[np.float32], ...]:
        """Mean, standard deviation and floor of each client: to look them up takes longer than the draw."""
        parameters = np.array([pool[1:] for pool in POOLS], dtype=np.float32) / np.float32(100)
        return tuple(column[self.pool] for column in parameters.T)

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        rng = self.rng("pools", t)
        if self._measured is None:
            completion = rng.standard_normal(self.num_clients, dtype=np.float32)
            mean, sd, floor = self._parameters
            completion *= sd
            completion += mean
            np.clip(completion, floor, np.float32(1), out=completion)
        else:
            rounds = self._measured.shape[1]
            drawn = self.pool * np.intp(rounds) + rng.integers(rounds, size=self.num_clients, dtype=np.uint8)
            completion = self._measured.ravel()[drawn]
        return online_throughout(completion)
