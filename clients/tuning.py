"""Which way of computing a cohort's gradients is the fastest here: measured, not believed.

It depends on the model, the batch size and the machine. The measurement takes some milliseconds and is done
once, where a run starts; `config.toml` of the run folder keeps the outcome, so that a repeated run does the
same.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from clients.batches import Batch
from clients.flat import FlatModel, one_thread
from clients.oracles import IN_CACHE, ORACLES, CohortOracle, make_oracle
from clients.stacked import linear_layers

SIZES = {"stacked": [2, 4, 8, 16, 32, 64, 128], "vmap": [8, 32]}  # of cohorts, on the CPU
GPU_SIZES = [16, 64, 256]
WORTH = 1.2  # how much faster than the loop another way must be: near that, noise would choose
CLOSE = 0.93  # among ways this near to the fastest, the smallest cohort leaves most of the cache to others
_MEMORY = 1 << 26  # numbers in the weights or in the inputs of a cohort that is tried (256 MB)
_SECONDS = 0.003  # a candidate is measured for, at least


def choose(
    model: FlatModel,
    input_shape: tuple[int, ...],
    num_classes: int,
    batch_size: int,
    num_clients: int,
    cohort: str = "auto",
    size: int = 0,
) -> tuple[str, int]:
    """Choose how to compute gradients, and the size of a cohort.

    Parameters
    ----------
    model
        The model, on the device that trains.
    input_shape, num_classes, batch_size
        Of the batches.
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
    if cohort == "loop" or (size and cohort != "auto"):
        return cohort, size or 1
    numbers = max(len(model.vector), batch_size * math.prod(input_shape))
    speeds: dict[tuple[str, int], float] = {}
    with one_thread():
        for name in _ways(model, cohort):
            before = 0.0
            for k in _sizes(model, name, size, num_clients, numbers):
                try:
                    speed = k / _seconds(ORACLES[name](model), model, k, input_shape, num_classes, batch_size)
                except (RuntimeError, ValueError) as error:  # random layers, for instance, under vmap
                    if cohort != "auto":
                        raise ValueError(f"cohort {cohort}: the model does not allow it: {error}") from None
                    break
                speeds[name, k] = speed
                if speed < 0.8 * max(before, speeds.get(("loop", 1), 0.0)):  # larger ones will not be faster
                    break
                before = speed
    loop = speeds.pop(("loop", 1), 0.0)
    least = max(WORTH * loop, CLOSE * max(speeds.values(), default=0.0))
    fast = [way for way, speed in speeds.items() if speed >= least]
    return min(fast, key=lambda way: way[1]) if fast else ("loop", size or 1)


def _ways(model: FlatModel, cohort: str) -> tuple[str, ...]:
    """The loop first, with which the others are compared; vmap never beats what is written out by hand."""
    if cohort != "auto":
        return (cohort,)
    return ("loop", "vmap") if linear_layers(model.module) is None else ("loop", "stacked")


def _sizes(model: FlatModel, name: str, size: int, num_clients: int, numbers: int) -> list[int]:
    """Sizes to try, of clients that have this many numbers in weights or inputs."""
    if name == "loop" or size:
        return [size or 1]
    most = min(num_clients, _MEMORY // numbers)
    if model.device.type == "cuda":
        sizes = GPU_SIZES
    else:  # beyond that, a cohort is fast only as long as it has the cache for itself
        sizes, most = SIZES[name], min(most, IN_CACHE // len(model.vector))
    return [k for k in sizes if k <= most] or sizes[:1]


def _seconds(
    oracle: CohortOracle,
    model: FlatModel,
    size: int,
    input_shape: tuple[int, ...],
    num_classes: int,
    batch_size: int,
) -> float:
    """Seconds that a step of a cohort takes, the fastest of some."""
    device = model.device
    inputs = torch.rand((size, batch_size, *input_shape), device=device)
    labels = torch.zeros((size, batch_size), dtype=torch.int64, device=device)
    weights = torch.full((size, batch_size), 1 / batch_size, device=device)
    batch = Batch(inputs, labels, weights, np.full(size, batch_size))
    y = model.vector.expand(size, -1).clone()
    oracle.descend(y, 1e-6, batch, None)  # the first call may load what it needs
    seconds: list[float] = []
    start = time.perf_counter()
    while len(seconds) < 3 or time.perf_counter() - start < _SECONDS:
        began = time.perf_counter()
        oracle.descend(y, 1e-6, batch, None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        if time.perf_counter() - start > 10 * _SECONDS:  # large models: one step says enough
            break
    return min(seconds)
