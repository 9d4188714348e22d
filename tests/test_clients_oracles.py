"""Backward passes that are written out agree with autograd, in double precision to the last digits."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from clients.gradients.autograd import Loop
from clients.gradients.batches import Batch
from clients.gradients.chain import Chain, MaxPooling
from clients.gradients.compiled_chain import CompiledChain, CompiledPooling
from clients.gradients.flat import FlatModel


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
    "linear": ((5,), [nn.Linear(5, 4)], [nn.ReLU(), nn.Linear(4, 3)]),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("lengths", [[4], [5, 3]], ids=["alone", "two"])
def test_a_chain_has_the_gradients_of_autograd(name: str, lengths: list[int]) -> None:
    shape, first, last = CHAINS[name]
    check_gradients(Chain, flat(*first, *last), batch_of(shape, lengths))


@settings(max_examples=40)
@example([1, 6, 5], [(5, 5), (5, 5)], [(2, 2), (0, 0)], [True, True], True, (12, 13), [4, 1], torch.float64)
@example([3, 1, 2], [(1, 1), (3, 2)], [(0, 0), (1, 3)], [True, False], False, (5, 4), [2], torch.float32)
@given(
    channels=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    kernels=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=2),
    paddings=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=2),
    pooled=st.lists(st.booleans(), min_size=2, max_size=2),
    bias=st.booleans(),
    size=st.tuples(st.integers(8, 13), st.integers(8, 13)),
    lengths=st.lists(st.integers(1, 19), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_compiled_layers_have_the_gradients_of_autograd(
    channels: list[int],
    kernels: list[tuple[int, int]],
    paddings: list[tuple[int, int]],
    pooled: list[bool],
    bias: bool,
    size: tuple[int, int],
    lengths: list[int],
    dtype: torch.dtype,
) -> None:
    layers: list[nn.Module] = []
    (height, width), inputs = size, channels[0]
    for outputs, kernel, padding, pools in zip(channels[1:], kernels, paddings, pooled, strict=True):
        there = height + 2 * padding[0] - kernel[0] + 1, width + 2 * padding[1] - kernel[1] + 1
        if min(there) < 2:
            break
        height, width = there
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias), nn.ReLU()]
        inputs = outputs
        if pools:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    model = flat(*layers, nn.Flatten(), nn.Linear(inputs * height * width, 3), dtype=dtype)
    check_gradients(CompiledChain, model, batch_of((channels[0], *size), lengths, dtype))


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 5, 7), (3, 2, 9)], ids=str)
def test_of_equal_pixels_the_first_counts_and_a_nan_stays(shape: tuple[int, int, int]) -> None:
    """As in PyTorch; background has equal pixels, and weights that diverge make NaN."""
    from clients.gradients import convolutions

    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 3, (5, *shape)).astype(np.float32))
    x[x == 2] = torch.from_numpy(rng.choice([2, np.nan, np.inf, -np.inf], int((x == 2).sum()))).float()
    layer = CompiledPooling(convolutions)
    out = layer.forward(x.permute(1, 2, 3, 0).contiguous(), [])
    expected = functional.max_pool2d(x, 2)
    torch.testing.assert_close(out.permute(3, 0, 1, 2), expected, rtol=0, atol=0, equal_nan=True)
    error = torch.from_numpy(rng.normal(size=expected.shape)).float()
    plain = MaxPooling(nn.MaxPool2d(2))
    plain.forward(x, [])
    found = layer.backward(error.permute(1, 2, 3, 0).contiguous(), [], True)
    torch.testing.assert_close(found.permute(3, 0, 1, 2), plain.backward(error, [], True), rtol=0, atol=0)


def test_weights_that_diverge_are_noticed() -> None:
    model = flat(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3), dtype=torch.float32)
    y = model.vector[None].clone()
    y[0, 4] = np.nan
    gradient, losses = CompiledChain(model).gradient(y, batch_of((1, 6, 6), [3], torch.float32))
    assert not gradient.isfinite().all()
    assert not losses.isfinite().any()


def test_a_gradient_at_other_weights_does_not_change_the_model() -> None:
    model, batch = flat(nn.Linear(4, 3)), batch_of((4,), [5])
    before = model.vector.clone()
    other = before + 1
    model.gradient(other, (batch.inputs[0], batch.targets[0]))
    torch.testing.assert_close(model.vector, before, rtol=0, atol=0)
    torch.testing.assert_close(other, before + 1, rtol=0, atol=0)
