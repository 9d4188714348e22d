"""Which way of computing a cohort's gradients is the fastest here: measured, not believed.

It depends on the model, the batch size and the machine. The measurement takes some milliseconds and is done
once, where a run starts; `config.toml` of the run folder keeps the outcome, so that a repeated run does the
same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from clients.cohort import run
from clients.gradients.batches import BatchIndices, CohortBatches, draw_batches
from clients.gradients.chain import Chain, chain_layers
from clients.gradients.dual import DualLinear
from clients.gradients.flat import FlatModel, one_thread
from clients.gradients.loop import Loop
from clients.gradients.oracle import CohortOracle
from clients.gradients.stacked import linear_layers
from clients.gradients.vmap import Vmap
from clients.rules import SGD

ORACLES: dict[str, Callable[[FlatModel], CohortOracle]] = {
    "stacked": DualLinear,
    "vmap": Vmap,
    "chain": Chain,
    "loop": Loop,
}
SINGLY = ("chain", "loop")  # take one client after the other
SIZES = {"stacked": [2, 4, 8, 16, 32, 64, 128], "vmap": [8, 32]}  # of cohorts, on the CPU
GPU_SIZES = [16, 64, 256]
IN_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache, also beside other workers
WORTH = 1.2  # how much faster than the loop another way must be: near that, noise would choose
CLOSE = 0.93  # among ways this near to the fastest, the smallest cohort leaves most of the cache to others
_MEMORY = 1 << 26  # numbers in the weights or in the inputs of a cohort that is tried (256 MB)
_STEPS = 10  # of a round that is measured, at most
_SECONDS = 0.003  # a candidate is measured for, at least


class Work(NamedTuple):
    """What a client does in a round, as a rule.

    Attributes
    ----------
    steps, batch_size
        Local steps, and examples of each.
    num_examples
        That the client has.
    plain
        Whether its rule is plain SGD.
    """

    steps: int
    batch_size: int
    num_examples: int
    plain: bool = True

    def indices(self) -> BatchIndices:
        """Draw what the steps are done with, `_STEPS` at most."""
        return draw_batches(
            self.num_examples, self.batch_size, min(self.steps, _STEPS), np.random.default_rng(0)
        )


class _Single(SGD):
    """Does one step after the other, as rules do that are not plain."""

    @classmethod
    def plain(cls) -> bool:
        """No."""
        return False


def make_oracle(model: FlatModel, cohort: str = "auto", size: int = 0) -> tuple[CohortOracle, int]:
    """Return what computes gradients, and the largest cohort to give it.

    Parameters
    ----------
    model
        The model.
    cohort
        One of `ORACLES`; `auto` is the first of `stacked`, `chain` and `loop` that the model allows.
    size
        Largest cohort; 0: one for `chain` and `loop`, else as many as keep the weights in a CPU's cache.
    """
    if cohort == "auto":
        cohort = "stacked" if linear_layers(model.module) else _one_by_one(model)
    oracle = ORACLES[cohort](model)
    if not size:
        size = 1 if cohort in SINGLY else max(1, IN_CACHE // len(model.vector))
    return oracle, size


def choose(
    model: FlatModel,
    input_shape: tuple[int, ...],
    work: Work,
    num_clients: int,
    cohort: str = "auto",
    size: int = 0,
) -> tuple[str, int]:
    """Choose how to compute gradients, and the size of a cohort.

    Parameters
    ----------
    model
        The model, on the device that trains.
    input_shape
        Of the data.
    work
        What a client does.
    num_clients
        How many clients one worker trains a round, at most.
    cohort, size
        What the user set; `auto` and 0 are to be chosen.

    Returns
    -------
    cohort, size
        Arguments of `make_oracle`.

    Raises
    ------
    ValueError
        The model does not allow what the user set.
    """
    if cohort != "auto":
        make_oracle(model, cohort, size or 1)
    if cohort in SINGLY or (size and cohort != "auto"):
        return cohort, size or 1
    most = min(num_clients, _MEMORY // max(len(model.vector), work.batch_size * math.prod(input_shape)))
    singly = _one_by_one(model)
    others = _others(model, singly) if cohort == "auto" else [cohort]
    if not others:
        return singly, size or 1
    speeds: dict[tuple[str, int], float] = {}
    with one_thread():
        floor = 1 / _seconds(ORACLES[singly](model), model, 1, input_shape, work) if cohort == "auto" else 0.0
        for name in others:
            try:
                oracle, before = ORACLES[name](model), floor
                for k in [size] if size else _sizes(name, oracle, model, work, most):
                    speed = speeds[name, k] = k / _seconds(oracle, model, k, input_shape, work)
                    if speed < 0.8 * before:  # larger ones will not be faster
                        break
                    before = max(before, speed)
            except (RuntimeError, ValueError) as error:  # random layers, for instance, under vmap
                if cohort != "auto":
                    raise ValueError(f"cohort {cohort}: the model does not allow it: {error}") from None
    least = max(WORTH * floor, CLOSE * max(speeds.values(), default=0.0))
    fast = [way for way, speed in speeds.items() if speed >= least]
    return min(fast, key=lambda way: way[1]) if fast else (singly, size or 1)


def _one_by_one(model: FlatModel) -> str:
    return "loop" if chain_layers(model.module) is None else "chain"


def _others(model: FlatModel, singly: str) -> list[str]:
    """Ways that may be faster; on a CPU, vmap never is where the passes are written out."""
    if linear_layers(model.module) is not None:
        return ["stacked"]
    return [] if singly == "chain" and model.device.type == "cpu" else ["vmap"]


def _sizes(name: str, oracle: CohortOracle, model: FlatModel, work: Work, most: int) -> list[int]:
    """Sizes of cohorts to try, `most` clients at most."""
    if model.device.type == "cuda":
        sizes = GPU_SIZES
    else:  # beyond that, a cohort is fast only as long as it has the cache for itself
        touched = oracle.working_set(work.indices()) if work.plain else len(model.vector)
        sizes, most = SIZES[name], min(most, IN_CACHE // max(1, touched))
    return [k for k in sizes if k <= most] or sizes[:1]


def _seconds(
    oracle: CohortOracle, model: FlatModel, size: int, input_shape: tuple[int, ...], work: Work
) -> float:
    """Seconds that a cohort takes, the fewest of some trials."""
    device, indices = model.device, work.indices()
    inputs = torch.rand((int(indices.indices.max()) + 1, *input_shape), device=device)
    labels = torch.zeros(len(inputs), dtype=torch.int64, device=device)
    y = model.vector.expand(size, -1).clone()
    rate = y.new_full((size, 1), 1e-6)
    rule = (SGD if work.plain else _Single)(y, [], {}, {})
    seconds: list[float] = []
    start = time.perf_counter()  # the first trial may load what it needs
    while len(seconds) < 4 or time.perf_counter() - start < _SECONDS:
        began = time.perf_counter()
        run(rule, oracle, CohortBatches(inputs, labels, [indices] * size, y.dtype), y, rate)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        if len(seconds) > 2 and time.perf_counter() - start > 10 * _SECONDS:  # large models: once says enough
            break
    return min(seconds)
