"""Backward passes that are written out agree with autograd, in double precision to the last digits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clients.draws import BatchIndices, draw_batches
from clients.gradients.autograd import Loop
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.chain import Chain
from clients.gradients.flat import FlatModel
from clients.gradients.stacked import DualLinear
from clients.rules import SGD
from clients.rules.base import Correction
from clients.simulated.cohort import run
from flexfl.ground.contract import FitConfig

CONFIG = FitConfig(round=1, learning_rate=0.1, batch_size=3, local_steps=1)


def double(*parts: nn.Module) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for part in parts:
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return FlatModel(nn.Sequential(*parts).double())


def random_batch(shape: tuple[int, ...], lengths: list[int], classes: int) -> Batch:
    rng, size = np.random.default_rng(1), max(lengths)
    weights = np.array([[i < n for i in range(size)] for n in lengths]) / np.array(lengths)[:, None]
    return Batch(
        torch.from_numpy(rng.normal(size=(len(lengths), size, *shape))),
        torch.from_numpy(rng.integers(classes, size=(len(lengths), size))),
        torch.from_numpy(weights),
        np.array(lengths),
    )


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
@pytest.mark.parametrize("lengths", [[4], [5, 3]])
def test_a_chain_has_the_gradients_of_autograd(name: str, lengths: list[int]) -> None:
    shape, first, last = CHAINS[name]
    model = double(*first, *last)
    batch, y = random_batch(shape, lengths, 3), model.vector + 0.01 * torch.arange(len(lengths))[:, None]
    expected, losses = Loop(model).gradient(y, batch)
    found, other = Chain(model).gradient(y, batch)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(other, losses, rtol=1e-11, atol=0)
    rate = torch.tensor([[0.5], [0.25]][: len(lengths)], dtype=torch.float64)
    for change in (None, lambda y: y.mul_(0.5)):
        after = y.clone()
        Chain(model).descend(after, rate, batch, change)
        start = y if change is None else y / 2
        torch.testing.assert_close(after, start - rate * expected, rtol=1e-11, atol=1e-14)


def batches_of(examples: list[int], steps: list[int], batch_size: int) -> list[BatchIndices]:
    rng = np.random.default_rng(7)
    return [draw_batches(n, batch_size, s, rng) for n, s in zip(examples, steps, strict=True)]


def fused_and_single(model: FlatModel, drawn: list[BatchIndices]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights and losses of either way."""
    rng = np.random.default_rng(2)
    inputs = torch.from_numpy(rng.normal(size=(30, 1, 3, 3)))
    labels = torch.from_numpy(rng.integers(4, size=30))
    batches = CohortBatches(inputs, labels, drawn, torch.float64)
    rate = 0.1 + 0.05 * torch.arange(len(drawn), dtype=torch.float64)[:, None]
    y, other = (model.vector.repeat(len(drawn), 1) for _ in range(2))
    losses = DualLinear(model).run_fused(y, y.clone(), rate, batches, Correction())
    return [(y, losses), (other, run(SGD(other, [], CONFIG, {}), Loop(model), batches, other, rate))]


@given(
    examples=st.integers(1, 30),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(lambda s: sorted(s, reverse=True)),
    hidden=st.booleans(),
    bias=st.booleans(),
)
def test_fused_steps_are_single_steps(examples: int, steps: list[int], hidden: bool, bias: bool) -> None:
    last = [nn.Linear(9, 4, bias=bias)]
    if hidden:
        last = [nn.Linear(9, 50, bias=bias), nn.ReLU(), nn.Linear(50, 7), nn.ReLU(), nn.Linear(7, 4)]
    model = double(nn.Flatten(), *last)
    drawn = batches_of([examples] * len(steps), steps, 3)
    (y, losses), (other, expected) = fused_and_single(model, drawn)
    torch.testing.assert_close(y, other, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=0)


def test_steps_are_fused_where_that_saves_operations() -> None:
    wide = double(nn.Flatten(), nn.Linear(9, 50), nn.ReLU(), nn.Linear(50, 4))
    narrow = double(nn.Flatten(), nn.Linear(9, 4))
    often, once = batches_of([8], [20], 4), batches_of([30], [5], 6)
    assert DualLinear(wide).fuses_steps(often[0])
    assert not DualLinear(narrow).fuses_steps(once[0])
