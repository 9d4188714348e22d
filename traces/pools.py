"""The participation pools of Ruan et al. (2021): devices that finish a part of their work, more or less."""

import tomllib
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round
from traces.seeded import SeededTrace


class Pool(NamedTuple):
    """One kind of device, in percent of the required local steps.

    Attributes
    ----------
    name : str
        What slows the device down.
    mean, sd : float
        Mean and standard deviation of a round's completion, before clipping.
    floor : float
        Smallest completion; 0 where the device may be inactive.
    """

    name: str
    mean: float
    sd: float
    floor: float


def load_pools() -> tuple[Pool, ...]:
    """Read the shipped table `pools.toml`, which says for every number where it comes from."""
    table = tomllib.loads(files("traces").joinpath("pools.toml").read_text(encoding="utf-8"))
    return tuple(Pool(**pool) for pool in table["pool"])


POOLS = load_pools()


class Pools(SeededTrace):
    """Every client draws its completion each round from one of the first pools of Ruan et al. 2021, Table 2.

    Every client gets its pool once, at random with equal chances. In each round its completion is
    ``clip(mean + sd * z, floor, 1)`` with a standard normal z. All clients are always online; a completion of
    0 (bandwidth pools only) means that the client dropped in mid-round.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    first : int
        Number of pools in use, 1..8: the more, the more heterogeneous the devices (the paper's |T|). 1..5 add
        CPU loads, which are never inactive; 6..8 add bandwidths.

    Attributes
    ----------
    pool : (N,) uint8
        Each client's pool, an index into `POOLS`.

    Raises
    ------
    ValueError
        If `first` lies outside 1..8.
    """

    def __init__(self, num_clients: int, seed: int, *, first: int = 8) -> None:
        super().__init__(num_clients, seed)
        if not 1 <= first <= len(POOLS):
            raise ValueError(f"trace pools: first is {first}, give a number of pools from 1 to {len(POOLS)}")
        self.pool: NDArray[np.uint8] = self.rng("pools-assignment", 0).integers(
            first, size=num_clients, dtype=np.uint8
        )
        # Kept per client: looking them up in every round would take longer than the draw.
        shares = np.array([pool[1:] for pool in POOLS], dtype=np.float32) / np.float32(100)
        self._mean, self._sd, self._floor = (column[self.pool] for column in shares.T)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        completion = self.rng("pools", t).standard_normal(self.num_clients, dtype=np.float32)
        completion *= self._sd
        completion += self._mean
        np.clip(completion, self._floor, np.float32(1), out=completion)
        everyone = np.ones(self.num_clients, np.bool_)
        return RoundAvailability(everyone, everyone.copy(), completion)
