"""Clients that are always online and complete a random part of their work: pools, stragglers."""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, Range, Share
from traces.base import RoundAvailability, SeededTrace, online_throughout


class Pool(NamedTuple):
    """What slows a device down, and its completions in percent: before clipping, and the smallest."""

    name: str
    mean: float
    sd: float
    floor: float


_TABLE = files("traces.patterns").joinpath("pools.toml")  # gives the source of every number
POOLS = tuple(Pool(**pool) for pool in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["pool"])


def measured_completions() -> NDArray[np.float32]:
    """Return the completions that `experiments/testbed.py` measured, by pool and round, shape (5, R)."""
    table = json.loads(files("traces.patterns").joinpath("pools_measured.json").read_text(encoding="utf-8"))
    return np.array([pool["shares"] for pool in table["pool"]], np.float32) / np.float32(100)


@dataclass(frozen=True, kw_only=True)
class Pools(SeededTrace, name="pools"):
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


@dataclass(frozen=True, kw_only=True)
class Stragglers(SeededTrace, name="stragglers"):
    """All clients are online; in each round a random share of them does 1 to X of X epochs, drawn uniformly.

    The setting of FedProx (shares of 0, 0.5 and 0.9, X = 20) and, with share=1 and X = 5, of FedNova. The
    others complete all their steps. A client that does x epochs has a completion of x / X, of however many
    steps its round has.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, 5.1 and 5.2. Wang et al.,
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020, 5.

    Attributes
    ----------
    share
        Probability of being a straggler in a round, for each client independently.
    epochs
        X, from which the number of epochs is drawn.
    """

    share: Share = 0.5
    epochs: Count = 20

    def availability(self, t: int) -> RoundAvailability:
        straggles = self.rng("stragglers", t).random(self.num_clients) < self.share
        done = self.rng("stragglers-epochs", t).integers(1, self.epochs + 1, size=self.num_clients)
        completion = np.where(straggles, done / self.epochs, 1.0).astype(np.float32)
        return online_throughout(completion)
