"""Gradients and steps that are written out are those of autograd, in double precision to the last digits."""

import os
import subprocess
import sys
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from clients.draws import BatchIndices, draw_batches
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.chain import Chain, MaxPooling
from clients.gradients.compiled_chain import CompiledChain
from clients.gradients.flat import FlatModel
from clients.gradients.fused import Fused
from clients.gradients.linear import Compiled
from clients.gradients.machine_code import compiled
from clients.gradients.oracle import Loop
from clients.rules import SGD
from clients.rules.base import Correction
from clients.simulated.cohort import run
from fedtide.base.contract import FitConfig
from fedtide.tasks import MODELS


def flat(*parts: nn.Module, dtype: torch.dtype = torch.float64) -> FlatModel:
    """A sequence of these, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for part in parts:
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()
    return FlatModel(nn.Sequential(*parts).to(dtype))


def batch_of(shape: tuple[int, ...], lengths: list[int], dtype: torch.dtype = torch.float64) -> Batch:
    """Random examples of three classes."""
    rng, size = np.random.default_rng(5), max(lengths)
    inputs = torch.from_numpy(rng.normal(size=(len(lengths), size, *shape))).to(dtype)
    weights = np.array([[i < n for i in range(size)] for n in lengths]) / np.array(lengths)[:, None]
    targets = torch.from_numpy(rng.integers(3, size=weights.shape))
    return Batch(inputs, targets, torch.from_numpy(weights).to(dtype), np.array(lengths))


def check_gradients(oracle: type[Chain], model: FlatModel, batch: Batch) -> None:
    """Gradients, losses and a step are those of autograd."""
    double = model.vector.dtype == torch.float64
    most, lengths = 1e-11 if double else 3e-5, batch.lengths
    y = model.vector + 0.01 * torch.arange(len(lengths), dtype=model.vector.dtype)[:, None]
    expected, losses = Loop(model).gradient(y, batch)
    found, other = oracle(model).gradient(y, batch)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=most, atol=most * max(1e-3, scale))
    torch.testing.assert_close(other, losses, rtol=most, atol=0)
    rate = 0.5 / torch.arange(1, len(lengths) + 1, dtype=y.dtype)[:, None]
    for change in (None, lambda y: y.mul_(0.5)):
        after = y.clone()
        oracle(model).descend(after, rate, batch, change)
        start = y if change is None else y / 2
        torch.testing.assert_close(after, start - rate * expected, rtol=most, atol=most * max(1, scale))


CHAINS = {
    "lenet": (
        (1, 12, 12),
        [nn.Conv2d(1, 3, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU()],
        [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)],
    ),
    "same": ((2, 7, 7), [nn.Conv2d(2, 3, 3, padding="same"), nn.Flatten()], [nn.Linear(147, 3)]),
    "strided": (
        (4, 9, 9),
        [nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2, bias=False), nn.MaxPool2d(2, ceil_mode=True)],
        [nn.ReLU(), nn.Flatten(), nn.Linear(24, 3, bias=False)],
    ),
    "pooled first": (
        (2, 8, 8),
        [nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(2, 3, 3, padding="valid")],
        [nn.Flatten(), nn.Linear(12, 3)],
    ),
    "pooling of a size of NumPy": (
        (1, 6, 6),
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(np.int64(2))],
        [nn.Flatten(), nn.Linear(8, 3)],
    ),
    "linear": ((5,), [nn.Linear(5, 4)], [nn.ReLU(), nn.Linear(4, 3)]),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("lengths", [[4], [5, 3]], ids=["alone", "two"])
def test_a_chain_has_the_gradients_of_autograd(name: str, lengths: list[int]) -> None:
    shape, first, last = CHAINS[name]
    check_gradients(Chain, flat(*first, *last), batch_of(shape, lengths))


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 5, 7), (3, 2, 9)], ids=str)
def test_of_equal_pixels_the_first_counts_and_a_nan_stays(shape: tuple[int, int, int]) -> None:
    """As in PyTorch; background has equal pixels, and weights that diverge make NaN."""
    from clients.gradients import image_layers

    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 3, (5, *shape)).astype(np.float32))
    x[x == 2] = torch.from_numpy(rng.choice([2, np.nan, np.inf, -np.inf], int((x == 2).sum()))).float()
    expected = functional.max_pool2d(x, 2)
    out, where = (np.empty((expected[0].numel(), 5), kind) for kind in (np.float32, np.uint8))
    out, where = (a.reshape(*expected.shape[1:3], -1) for a in (out, where))
    image_layers.pool(innermost(x), len(x), out, where)
    np.testing.assert_array_equal(out, innermost(expected))
    error = torch.from_numpy(rng.normal(size=expected.shape)).float()
    plain = MaxPooling(nn.MaxPool2d(2))
    plain.forward(x, [])
    found = np.empty_like(innermost(x))
    image_layers.unpool(innermost(error), where, len(x), found)
    np.testing.assert_array_equal(found, innermost(plain.backward(error, [], True)))


def innermost(images: torch.Tensor) -> NDArray[Any]:
    """Images (B, C, H, W) as an array (C, H, W B)."""
    return images.permute(1, 2, 3, 0).contiguous().flatten(2).numpy()


@pytest.mark.parametrize(
    ("shape", "reason"), [((2, 6, 6), "1 channels gets images of 2"), ((1, 4, 6), r"too small|does not fit")]
)
def test_compiled_code_reads_no_images_of_another_shape(shape: tuple[int, ...], reason: str) -> None:
    """As a client's own may be, after those on which the model was tried; it would read beyond an array."""
    model = flat(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    y = model.vector[None].clone()
    with pytest.raises(ValueError, match=reason):
        CompiledChain(model).run_fused(
            y.clone(), y, y.new_ones((1, 1)), drawn(shape, 3, [1], 3, torch.float64), Correction()
        )


def test_weights_that_diverge_are_noticed() -> None:
    model = flat(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3), dtype=torch.float32)
    y = model.vector[None].clone()
    y[0, 4] = np.nan
    batches, found = drawn((1, 6, 6), 3, [2], 3, torch.float32), torch.empty_like(y)
    losses, norms = CompiledChain(model).run_fused(found, y, y.new_full((1, 1), 0.1), batches, Correction())
    assert not found.isfinite().all()
    assert not losses.isfinite().any()
    assert not np.isfinite(norms).any()


def test_a_gradient_at_other_weights_does_not_change_the_model() -> None:
    model, batch = flat(nn.Linear(4, 3)), batch_of((4,), [5])
    before = model.vector.clone()
    other = before + 1
    model.gradient(other, (batch.inputs[0], batch.targets[0]))
    torch.testing.assert_close(model.vector, before, rtol=0, atol=0)
    torch.testing.assert_close(other, before + 1, rtol=0, atol=0)


# Steps that are done in one call, corrections included, in every process alike


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


def drawn(
    shape: tuple[int, ...], classes: int, steps: list[int], batch_size: int, dtype: torch.dtype
) -> CohortBatches:
    """Random examples for so many steps of some clients."""
    rng = np.random.default_rng(2)
    inputs = torch.from_numpy(rng.normal(size=(30, *shape))).to(dtype)
    labels = torch.from_numpy(rng.integers(classes, size=30))
    return CohortBatches(inputs, labels, [draw_batches(13, batch_size, s, rng) for s in steps], dtype)


def check_steps(oracle: Fused, batches: CohortBatches, made: Correction, apart: bool) -> None:
    """All steps of some clients, which may start from weights of their own."""
    model, count = oracle.model, len(batches.clients)
    rate = 0.1 + 0.05 * torch.arange(count, dtype=torch.float64)[:, None]
    start = model.vector.expand(count, -1) + apart * torch.arange(count)[:, None]
    rule = type("Rule", (WithCorrection,), {"made": made})(start, [], CONFIG, {})
    y, other = torch.full_like(start, torch.nan), start.clone()
    losses, norms = oracle.run_fused(y, start, rate, batches, made)
    expected, expected_norms = run(rule, Loop(model), batches, other, rate)
    torch.testing.assert_close(y, other, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-9, atol=1e-13)  # of weights about 1


def correction(strength: float, direction: str, model: FlatModel, count: int) -> Correction:
    """With a direction for all clients, one for each, or none."""
    shape = {"none": (), "one": (len(model.vector),), "own": (count, len(model.vector))}[direction]
    along = torch.linspace(-1, 1, int(np.prod(shape)), dtype=torch.float64).view(shape) if shape else None
    return Correction(strength, along)


CORRECTED = {
    "strength": st.sampled_from([0.0, 0.7]),
    "direction": st.sampled_from(["none", "one", "own"]),
    "apart": st.booleans(),
}


@settings(max_examples=60)
@example([9, 4], 5, [4, 2], True, 0.3, "own", False)
@example([4, 3], 0, [2], False, 0.0, "none", True)
@example([4, 30, 3], 0, [6], True, 0.0, "none", False)
@given(
    widths=st.lists(st.integers(2, 40), min_size=2, max_size=4),
    batch_size=st.integers(0, 14),
    steps=STEPS,
    bias=st.booleans(),
    **CORRECTED,
)
def test_compiled_steps_are_those_of_autograd(widths, batch_size, steps, bias, strength, direction, apart):
    model = linear(*widths, bias=bias)
    batches = drawn(widths[:1], widths[-1], steps, batch_size, torch.float64)
    check_steps(Compiled(model), batches, correction(strength, direction, model, len(steps)), apart)


@settings(max_examples=60)
@example(
    [1, 6, 5], [(5, 5)] * 2, [(2, 2), (0, 0)], [1, 1], [1, 1], [4, 3], True, (12, 13), [4, 1], 4, 0, "none", 0
)
@example(
    [3, 1, 2], [(1, 1), (3, 2)], [(0, 0), (1, 3)], [1, 0], [0, 1], [3], False, (5, 4), [2], 0, 0.7, "own", 1
)
@given(
    channels=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    kernels=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=2),
    paddings=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=2),
    pooled=st.lists(st.booleans(), min_size=2, max_size=2),
    relus=st.lists(st.booleans(), min_size=2, max_size=2),
    widths=st.lists(st.integers(2, 9), min_size=1, max_size=2),
    bias=st.booleans(),
    size=st.tuples(st.integers(8, 13), st.integers(8, 13)),
    steps=STEPS,
    batch_size=st.integers(0, 12),
    **CORRECTED,
)
def test_compiled_steps_of_convolutions_are_those_of_autograd(
    channels,
    kernels,
    paddings,
    pooled,
    relus,
    widths,
    bias,
    size,
    steps,
    batch_size,
    strength,
    direction,
    apart,
):
    layers: list[nn.Module] = []
    (height, width), inputs = size, channels[0]
    for outputs, kernel, padding, pools, relu in zip(
        channels[1:], kernels, paddings, pooled, relus, strict=True
    ):
        there = height + 2 * padding[0] - kernel[0] + 1, width + 2 * padding[1] - kernel[1] + 1
        if min(there) < 2:
            break
        height, width = there
        layers.append(nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias))
        inputs = outputs
        if relu:
            layers.append(nn.ReLU())
        if pools:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = inputs * height * width
    for n, units in enumerate(widths):
        layers += [nn.ReLU()] * (n > 0) + [nn.Linear(features, units, bias=bias)]
        features = units
    model = flat(*layers)
    batches = drawn((channels[0], *size), widths[-1], steps, batch_size, torch.float64)
    check_steps(CompiledChain(model), batches, correction(strength, direction, model, len(steps)), apart)


@pytest.mark.parametrize(("name", "oracle"), [("logistic", Compiled), ("lenet", CompiledChain)])
def test_a_step_on_many_examples_is_rounded_once(name: str, oracle: type[Fused]) -> None:
    """In single precision small steps would be lost if each example's were added to the weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        single = MODELS[name]((1, 8, 8), 3)
    steps = {}
    for dtype in (torch.float32, torch.float64):
        model = FlatModel(deepcopy(single).to(dtype))
        inputs, labels = torch.linspace(-1, 1, 600 * 64).sin().view(600, 1, 8, 8), torch.arange(600) % 3
        all_once = [BatchIndices(np.arange(600), np.array([600]))]
        batches = CohortBatches(inputs.to(dtype), labels, all_once, dtype)
        start, rate = model.vector[None], torch.full((1, 1), 1e-4, dtype=dtype)
        y = start.clone()
        oracle(model).run_fused(y, start, rate, batches, Correction())
        steps[dtype] = y.double() - start.double()
    rounding = torch.finfo(torch.float32).eps * start.abs().max()
    torch.testing.assert_close(steps[torch.float32], steps[torch.float64], rtol=0, atol=float(rounding))


def test_code_that_cannot_be_kept_is_compiled_anew() -> None:
    """As in a container whose file system is read-only; here the function has no file."""
    names: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", names)
    assert compiled(names["twice"])(3) == 6


TWICE = """
import hashlib
import numpy as np
import torch
from clients.draws import draw_batches
from clients.gradients import linear_sgd
from clients.gradients.batches import CohortBatches
from clients.gradients.compiled_chain import CompiledChain
from clients.gradients.flat import FlatModel
from clients.rules.base import Correction
from fedtide.tasks import MODELS

torch.manual_seed(0)
rng = np.random.default_rng(0)
def zeros(*shape):
    return np.zeros(shape, np.float32)
def work(size):
    start, rates = rng.normal(size=(3, size)).astype(np.float32), np.full(3, 0.05, np.float32)
    x, rows, labels = rng.random((50, 64), dtype=np.float32), *rng.integers(10, size=(2, 4, 3, 5))
    results = zeros(4, 3), np.zeros(3)
    lengths = np.full((4, 3), 5)
    return linear_sgd.Work(zeros(3, size), start, 0.3, zeros(1, 0), rates, x, rows, labels, lengths, *results)

one = work(650)
linear_sgd.train(one, linear_sgd.Space(zeros(640), zeros(0), zeros(10), zeros(10, 10)), 0, 1)
oracle = CompiledChain(FlatModel(MODELS["lenet"]((1, 8, 8), 10)))
images, trained = torch.rand(50, 1, 8, 8), oracle.model.vector.expand(2, -1).clone()
batches = CohortBatches(images, torch.arange(50) % 10, [draw_batches(50, 5, 4, rng)] * 2, torch.float32)
found = oracle.run_fused(trained, trained.clone(), torch.full((2, 1), 0.1), batches, Correction())
results = one.y, one.losses, one.norms, trained.numpy(), *map(np.asarray, found)
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
