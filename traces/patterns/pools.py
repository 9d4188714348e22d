"""The participation pools of Ruan et al. (2021): devices that complete a random fraction of their work."""

import json
import tomllib
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, online_throughout
from traces.seeded import SeededTrace, check_choice


class Pool(NamedTuple):
    """One kind of device, in percent of the required local steps.

    Attributes
    ----------
    name : str
        What slows the device down.
    mean, sd : float
        Mean and standard deviation of a round's completion, before clipping.
    floor : float
        Smallest completion; 0 if the device may be inactive.
    """

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


First = Annotated[int, f"from 1 to {len(POOLS)}"]
Source = Literal["paper", "measured"]


class Pools(SeededTrace):
    """Every client draws its completion each round from one of the first pools of Ruan et al. 2021, Table 2.

    Every client is assigned to a pool once, uniformly at random. With `source=paper` its completion in a
    round is ``clip(mean + sd * z, floor, 1)`` with z standard normal. With `source=measured` it is that of a
    round drawn uniformly from those in which we measured a worker under the pool's load, as the authors did
    with their traces. All clients are always online; a completion of 0 (bandwidth pools only) means that the
    client drops out mid-round.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    first : int
        Number of pools in use (the paper's |T|): the more pools, the more heterogeneous the devices. Pools
        1..5 are CPU loads, which are never inactive; 6..8 are bandwidths, which were not measured: with
        `source=measured`, 6 to 8 mean 5.
    source : str
        `paper` or `measured`.

    Attributes
    ----------
    pool : (N,) uint8
        Each client's pool, an index into `POOLS`.

    Raises
    ------
    ValueError
        If `first` is outside 1..8 or the source is unknown.
    """

    def __init__(self, num_clients: int, seed: int, *, first: First = 8, source: Source = "paper") -> None:
        super().__init__(num_clients, seed)
        if not 1 <= first <= len(POOLS):
            raise ValueError(f"trace pools: first is {first}, give a number of pools from 1 to {len(POOLS)}")
        check_choice("pools", "source", source, Source)
        self._measured = measured_completions() if source == "measured" else None
        count = first if self._measured is None else min(first, len(self._measured))
        self.pool: NDArray[np.uint8] = self.rng("pools-assignment", 0).integers(
            count, size=num_clients, dtype=np.uint8
        )
        # Stored per client: looking them up in every round would take longer than the draw.
        parameters = np.array([pool[1:] for pool in POOLS], dtype=np.float32) / np.float32(100)
        self._mean, self._sd, self._floor = (column[self.pool] for column in parameters.T)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        rng = self.rng("pools", t)
        if self._measured is None:
            completion = rng.standard_normal(self.num_clients, dtype=np.float32)
            completion *= self._sd
            completion += self._mean
            np.clip(completion, self._floor, np.float32(1), out=completion)
        else:
            rounds = self._measured.shape[1]
            drawn = self.pool * np.intp(rounds) + rng.integers(rounds, size=self.num_clients, dtype=np.uint8)
            completion = self._measured.ravel()[drawn]
        return online_throughout(completion)
