"""How a run computes gradients: which oracle, and how many clients train in one call.

Oracles differ in the last bits of the weights, so `auto` depends on the model, the device and whether Numba
is there, and on no clock. The size of a cohort is timed where it cannot change a bit: for `stacked` on a CPU,
in some milliseconds at the start of a run, and for `compiled` where that does not do all steps of a client in
one call. Otherwise it depends on the size of the model. `config.toml` in the run folder records both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from clients.draws import BatchIndices, draw_batches
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel, as_tensor, one_thread
from clients.gradients.oracle import CohortOracle
from clients.gradients.oracles import COHORTS, ONE_BY_ONE, ORACLES, automatic
from clients.rules import SGD
from clients.simulated.cohort import run
from flexfl.ground.contract import FitConfig
from flexfl.ground.specs import find
from flexfl.tasks import Examples

CPU_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache even if other workers use it
GPU_WEIGHTS = 1 << 26  # weights of a cohort on a GPU (256 MB), without gradients and activations
LARGEST = 256  # largest cohort where the size is not timed
TIMED = (2, 4, 8, 16, 32, 64, 128)  # sizes that are timed
CLOSE = 0.93  # of the best speed: among sizes this fast, the smallest leaves most of the cache to others
_MOST_NUMBERS = 1 << 26  # weights, or numbers in the inputs, of a cohort that is timed (256 MB)
_MOST_STEPS = 10  # steps that are timed
_LEAST_SECONDS = 0.004  # for which a size is timed, on average
_TURNS = (3, 20)  # least and most trials of a size


class Work(NamedTuple):
    """What a client typically does in a round.

    Attributes
    ----------
    steps, batch_size
        Local steps, and examples in each.
    num_examples
        How many examples the client has.
    rule
        What it does in a step.
    """

    steps: int
    batch_size: int
    num_examples: int
    rule: type[SGD] = SGD

    def indices(self) -> BatchIndices:
        """Draw the batches of at most `_MOST_STEPS` steps."""
        steps = min(self.steps, _MOST_STEPS)
        return draw_batches(self.num_examples, self.batch_size, steps, np.random.default_rng(0))

    def is_fused(self, oracle: CohortOracle) -> bool:
        """Return whether an oracle does all of these steps in one call."""
        rule = self.rule
        return rule.steps_are_corrected() and oracle.fuses_steps(self.indices(), not rule.plain())


class _SingleSteps(SGD):
    """SGD whose steps are not fused, like those of other rules."""

    @classmethod
    def steps_are_corrected(cls) -> bool:
        """Return False."""
        return False


def make_oracle(
    model: FlatModel, examples: Examples, cohort: str = "auto", size: int = 0
) -> tuple[CohortOracle, int]:
    """Make an oracle; return it and the size of the largest cohort.

    Parameters
    ----------
    model
        The model, on the device that trains.
    examples
        Some to try the model with, see `flexfl.tasks.blank`.
    cohort
        One of `COHORTS`.
    size
        Size of the largest cohort; 0: chosen by the number of weights. It is always 1 for those
        of `ONE_BY_ONE`.

    Raises
    ------
    ValueError
        `cohort` is unknown or does not support the model, or these examples.
    """
    return _made(model, _tried(model, examples, cohort), size)


def _tried(model: FlatModel, examples: Examples, cohort: str) -> str:
    """Return the name of an oracle that can train the model on such examples: `cohort`, if that names one."""
    find("cohort", COHORTS, cohort)
    if cohort == "auto":
        return automatic(model, examples)
    oracle = ORACLES[cohort](model)
    if cohort != "loop":
        try:
            oracle.check(examples)
        except ValueError as error:
            raise ValueError(f"cohort {cohort}: cannot train the model: {error}; use cohort loop") from None
    return cohort


def _made(model: FlatModel, name: str, size: int) -> tuple[CohortOracle, int]:
    """Make the oracle of this name; return it and the size of the largest cohort."""
    oracle = ORACLES[name](model)
    if name in ONE_BY_ONE:
        return oracle, 1
    limit = CPU_CACHE if model.device.type == "cpu" else GPU_WEIGHTS
    return oracle, size or max(1, min(LARGEST, limit // len(model.vector)))


def choose(
    model: FlatModel,
    examples: Examples,
    work: Work,
    num_clients: int,
    cohort: str = "auto",
    size: int = 0,
) -> tuple[str, int]:
    """Choose an oracle and the size of a cohort, as far as the user has not set them.

    Parameters
    ----------
    model
        The model, on the device that trains.
    examples
        Some to try the model with, see `flexfl.tasks.blank`.
    work
        What a client typically does in a round.
    num_clients
        How many clients train in a round, at most.
    cohort, size
        What the user has set; `auto` and 0: to be chosen.

    Returns
    -------
    cohort, size
        Arguments of `make_oracle`.

    Raises
    ------
    ValueError
        `cohort` is unknown or does not support the model.
    """
    cohort = _tried(model, examples, cohort)
    oracle, largest = _made(model, cohort, size)
    if size or cohort not in ("stacked", "compiled") or model.device.type != "cpu":
        return cohort, largest
    if cohort == "compiled" and work.is_fused(oracle):
        return cohort, LARGEST
    return cohort, _fastest_size(oracle, model, examples, work, num_clients)


def _fastest_size(
    oracle: CohortOracle, model: FlatModel, examples: Examples, work: Work, num_clients: int
) -> int:
    """Time some cohort sizes; return the smallest that is about as fast as the fastest."""
    working_set = oracle.working_set(work.indices()) if work.is_fused(oracle) else len(model.vector)
    numbers = max(len(model.vector), work.batch_size * math.prod(examples[0].shape[1:]))
    # Larger working sets are fast only as long as no other worker uses the cache.
    most = min(num_clients, _MOST_NUMBERS // numbers, CPU_CACHE // max(1, working_set))
    trials = {size: _trial(oracle, model, size, examples, work) for size in TIMED if size <= most}
    if len(trials) < 2:
        return min(trials, default=TIMED[0])
    with one_thread():
        speeds = _speeds(trials)
    return min(size for size, speed in speeds.items() if speed >= CLOSE * max(speeds.values()))


def _speeds(trials: Mapping[int, Callable[[], float]]) -> dict[int, float]:
    """Return the clients per second of each size, the maximum over some trials.

    Sizes take turns: what else the machine does for a moment then concerns all of them.
    """
    speeds, turns, start = dict.fromkeys(trials, 0.0), 0, time.perf_counter()
    while turns < _TURNS[0] or (
        turns < _TURNS[1] and time.perf_counter() - start < len(trials) * _LEAST_SECONDS
    ):
        fastest = max(speeds.values())
        for size, trial in trials.items():
            if speeds[size] >= 0.8 * fastest:  # the others will not be chosen
                speeds[size] = max(speeds[size], size / trial())
        turns += 1
    return speeds


def _trial(
    oracle: CohortOracle, model: FlatModel, size: int, examples: Examples, work: Work
) -> Callable[[], float]:
    """Return a function that trains a cohort of this size for a round, and returns the seconds it took."""
    indices = work.indices()
    generator = torch.Generator().manual_seed(0)
    count = int(indices.indices.max()) + 1
    inputs = torch.rand((count, *examples[0].shape[1:]), generator=generator)
    targets = as_tensor(np.zeros((count, *examples[1].shape[1:]), examples[1].dtype))
    y = model.vector.expand(size, -1).clone()
    rate = y.new_full((size, 1), 1e-6)
    config = FitConfig(round=1, learning_rate=1e-6, batch_size=work.batch_size, local_steps=work.steps)
    rule = (SGD if work.is_fused(oracle) else _SingleSteps)(y, [], config, {})

    def trial() -> float:
        began = time.perf_counter()
        run(rule, oracle, CohortBatches(inputs, targets, [indices] * size, y.dtype), y, rate)
        return time.perf_counter() - began

    return trial
