"""Steps that are done in one call are those of autograd, corrections included, in every process alike."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from clients.draws import draw_batches
from clients.gradients.autograd import Loop
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.linear import Compiled
from clients.gradients.machine_code import compiled
from clients.rules import SGD
from clients.rules.base import Correction
from clients.simulated.cohort import run
from fedtide.ground.contract import FitConfig

CONFIG = FitConfig(round=1, learning_rate=0.1, batch_size=3, local_steps=4)
STEPS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(lambda s: sorted(s, reverse=True))


class WithCorrection(SGD):
    """Adds a correction that a test has made."""

    made = Correction()

    def correction(self) -> Correction:
        kept = len(self.weights)  # of a cohort of which only the first still train
        along = self.made.direction
        return self.made if along is None or along.ndim == 1 else self.made._replace(direction=along[:kept])


def linear(*widths: int, bias: bool = True) -> FlatModel:
    """Linear layers and ReLUs, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Linear(i, o, bias=bias) for i, o in pairwise(widths)]
    return FlatModel(nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1]).double())


def check_steps(model: FlatModel, steps: list[int], batch_size: int, made: Correction, apart: bool) -> None:
    """All steps of some clients, which may start from weights of their own."""
    count, rng = len(steps), np.random.default_rng(2)
    inputs = torch.from_numpy(rng.normal(size=(30, model.module[0].in_features)))
    labels = torch.from_numpy(rng.integers(model.module[-1].out_features, size=30))
    drawn = [draw_batches(13, batch_size, s, rng) for s in steps]
    batches = CohortBatches(inputs, labels, drawn, torch.float64)
    rate = 0.1 + 0.05 * torch.arange(count, dtype=torch.float64)[:, None]
    start = model.vector.expand(count, -1) + apart * torch.arange(count)[:, None]
    rule = type("Rule", (WithCorrection,), {"made": made})(start, [], CONFIG, {})
    y, other = torch.full_like(start, torch.nan), start.clone()
    losses, norms = Compiled(model).run_fused(y, start, rate, batches, made)
    expected, expected_norms = run(rule, Loop(model), batches, other, rate)
    torch.testing.assert_close(y, other, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-9)


@settings(max_examples=60)
@example([9, 4], 5, [4, 2], True, 0.3, "own", False)
@example([4, 3], 0, [2], False, 0.0, "none", True)
@example([4, 30, 3], 0, [6], True, 0.0, "none", False)
@given(
    widths=st.lists(st.integers(2, 40), min_size=2, max_size=4),
    batch_size=st.integers(0, 14),
    steps=STEPS,
    bias=st.booleans(),
    strength=st.sampled_from([0.0, 0.7]),
    direction=st.sampled_from(["none", "one", "own"]),
    apart=st.booleans(),
)
def test_compiled_steps_are_those_of_autograd(
    widths: list[int],
    batch_size: int,
    steps: list[int],
    bias: bool,
    strength: float,
    direction: str,
    apart: bool,
) -> None:
    """With a direction for all clients, one for each, or none."""
    model = linear(*widths, bias=bias)
    shape = {"none": (), "one": (len(model.vector),), "own": (len(steps), len(model.vector))}[direction]
    along = torch.linspace(-1, 1, int(np.prod(shape)), dtype=torch.float64).view(shape) if shape else None
    check_steps(model, steps, batch_size, Correction(strength, along), apart)


def test_code_that_cannot_be_kept_is_compiled_anew() -> None:
    """As in a container whose file system is read-only; here the function has no file."""
    names: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", names)
    assert compiled(names["twice"])(3) == 6


TWICE = """
import hashlib
import numpy as np
from clients.gradients import convolutions, linear_sgd

rng = np.random.default_rng(0)
def zeros(*shape):
    return np.zeros(shape, np.float32)
def work(size):
    start, rates = rng.normal(size=(3, size)).astype(np.float32), np.full(3, 0.05, np.float32)
    x, rows, labels = rng.random((50, 64), dtype=np.float32), *rng.integers(10, size=(2, 4, 3, 5))
    results = zeros(4, 3), np.zeros(3)
    lengths = np.full((4, 3), 5)
    return linear_sgd.Work(zeros(3, size), start, 0.3, zeros(1, 0), rates, x, rows, labels, lengths, *results)

one, two = work(650), work(535)
linear_sgd.train(one, zeros(640), zeros(10), zeros(10, 10), 0, 1)
space = zeros(10 * 64 + 10 * 16), zeros(20), zeros(20, 10), zeros(2, 160), zeros(10, 10)
linear_sgd.train_layers(two, np.array([64, 7, 10]), True, *space, 0, 1)
images, weight = rng.random((3, 9, 27), dtype=np.float32), rng.random((5, 3, 3, 3), dtype=np.float32)
out = np.empty((5, 7, 21), np.float32)
convolutions.convolve(images, weight, np.zeros(5, np.float32), 3, out)
results = one.y, one.losses, one.norms, two.y, two.losses, two.norms, out
print(hashlib.sha256(b"".join(a.tobytes() for a in results)).hexdigest())
"""


def test_the_process_that_compiles_gets_the_same_bits_as_later_ones(tmp_path: Path) -> None:
    done = [
        subprocess.run(
            [sys.executable, "-c", TWICE],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert done[0].stdout == done[1].stdout
