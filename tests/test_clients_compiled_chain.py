"""Compiled convolutions and pooling are those of PyTorch, for any small shape."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from clients.gradients.autograd import Loop
from clients.gradients.batches import Batch
from clients.gradients.chain import MaxPooling
from clients.gradients.compiled_chain import CompiledChain, CompiledPooling
from clients.gradients.flat import FlatModel


def flat(*layers: nn.Module, dtype: torch.dtype = torch.float64) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = nn.Sequential(*layers)
        for layer in module:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()
        return FlatModel(module.to(dtype))


def batch_of(shape: tuple[int, ...], lengths: list[int], dtype: torch.dtype) -> Batch:
    rng, most = np.random.default_rng(5), max(lengths)
    inputs = torch.from_numpy(rng.normal(size=(len(lengths), most, *shape))).to(dtype)
    weights = np.array([[i < n for i in range(most)] for n in lengths]) / np.array(lengths)[:, None]
    targets = torch.from_numpy(rng.integers(3, size=weights.shape))
    return Batch(inputs, targets, torch.from_numpy(weights).to(dtype), np.array(lengths))


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
def test_gradients_are_those_of_autograd(
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
    batch = batch_of((channels[0], *size), lengths, dtype)
    y = model.vector.repeat(len(lengths), 1)
    expected, losses = Loop(model).gradient(y, batch)
    found, other = CompiledChain(model).gradient(y, batch)
    most = 1e-12 if dtype == torch.float64 else 3e-5
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=most, atol=most * max(1e-3, scale))
    torch.testing.assert_close(other, losses, rtol=most, atol=0)
    rate = torch.full((len(lengths), 1), 0.5, dtype=dtype)
    after = y.clone()
    CompiledChain(model).descend(after, rate, batch, None)
    torch.testing.assert_close(after, y - rate * expected, rtol=most, atol=most * max(1, scale))


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 5, 7), (3, 2, 9)])
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
