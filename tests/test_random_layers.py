"""Dropout and stochastic depth: the same masks alone, in cohorts, and in a plain loop with masks of NumPy."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

from clients.draws import BatchIndices, draw_batches
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import ORACLES, choose
from clients.gradients.random_layers import with_draws
from clients.rules import SGD
from clients.simulated.cohort import run
from fedtide.base.contract import FitConfig

CPU = torch.device("cpu")


def masks(seed: int, call: int, count: int, p: float) -> NDArray[np.bool_]:
    """What the call-th random layer of a forward pass keeps: 16 bits of SplitMix64 for each number."""

    def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    gamma = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = mixed(np.array([seed], np.uint64) + np.uint64(call) * gamma)
        bits = mixed(key + np.arange(-(-count // 4), dtype=np.uint64) * gamma)
    return bits.astype("<u8").view("<u2")[:count] >= p * 2**16


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 1.0])
def test_masks_are_a_function_of_seed_layer_and_place(p: float) -> None:
    model = nn.Sequential(nn.Dropout(p), nn.Dropout(p))
    draws, scale = with_draws(model), 1 / (1 - p) if p < 1 else 1.0
    for seed in (0, 1, 2**63 - 1):
        draws.begin(seed, CPU)
        for call in (1, 2):
            found = model[call - 1](torch.ones(9, 5))
            np.testing.assert_allclose(found.numpy().ravel(), masks(seed, call, 45, p) * scale, rtol=1e-6)
    draws.begin(None, CPU)
    assert torch.equal(model.eval()(torch.ones(9, 5)), torch.ones(9, 5))


def test_masks_are_as_random_as_they_should_be() -> None:
    """Of a quarter, within five deviations; two layers, steps or clients have nothing in common."""
    layer = nn.Dropout(0.25)
    draws, shape = with_draws(layer), torch.ones(100, 1000)
    drawn = []
    for seed in (3, 4, 3 + 2**40):
        draws.begin(seed, CPU)
        drawn += [layer(shape) > 0, layer(shape) > 0]
    for one, other in zip(drawn, [*drawn[1:], drawn[0]], strict=True):
        assert abs(float(one.float().mean()) - 0.75) < 5 * (0.1875 / 1e5) ** 0.5
        assert abs(float((one & other).float().mean()) - 0.5625) < 5 * (0.2461 / 1e5) ** 0.5
    assert abs(float((drawn[0][:, 1:] & drawn[0][:, :-1]).float().mean()) - 0.5625) < 0.01


@pytest.mark.parametrize(
    ("layer", "shape", "constant"),
    [
        (nn.Dropout1d(), (6, 4, 5), (2,)),
        (nn.Dropout2d(), (6, 4, 5, 5), (2, 3)),
        (nn.Dropout3d(), (6, 4, 3, 3, 3), (2, 3, 4)),
        (StochasticDepth(0.5, "row"), (6, 4, 5), (1, 2)),
        (StochasticDepth(0.5, "batch"), (6, 4, 5), (0, 1, 2)),
    ],
)
def test_whole_channels_and_whole_examples(
    layer: nn.Module, shape: tuple[int, ...], constant: tuple[int, ...]
) -> None:
    draws = with_draws(layer)
    found = []
    for seed in range(20):
        draws.begin(seed, CPU)
        found.append(layer(torch.ones(shape)))
    drawn = torch.stack(found)
    assert {*drawn.flatten().tolist()} == {0.0, 2.0}
    for axis in constant:
        assert torch.equal(*(drawn.amin(axis + 1), drawn.amax(axis + 1)))
    assert any(not torch.equal(drawn[0], other) for other in drawn)


class Residual(nn.Module):
    """Blocks that are left out at random, and dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.depth, self.dropout = StochasticDepth(0.3, "row"), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + self.depth(block(self.dropout(x)))
        out: Tensor = self.last(x)
        return out


def mlp() -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.25)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "mlp": (mlp, (6,), {"stacked", "vmap", "chain", "loop"}),
    "convolutions": (convolutions, (2, 8, 8), {"vmap", "chain", "loop"}),
    "residual": (Residual, (6,), {"vmap", "loop"}),
}


def trained(
    oracle: Any, x: NDArray[Any], y: NDArray[Any], clients: list[BatchIndices], rate: float = 0.1
) -> NDArray[Any]:
    """The weights of clients after their steps of SGD, in one cohort."""
    start = oracle.model.vector.clone()
    weights = start.expand(len(clients), -1).clone()
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    batches = CohortBatches(inputs, targets, clients, start.dtype)
    config = FitConfig(round=1, local_steps=4, batch_size=5, learning_rate=rate)
    rule = SGD(start.expand(len(clients), -1), [], config, {})
    run(rule, oracle, batches, weights, torch.full((len(clients), 1), rate))
    return weights.numpy()


@pytest.mark.parametrize("name", MODELS)
def test_a_client_trains_alike_alone_in_a_cohort_and_in_a_plain_loop(name: str) -> None:
    """Its batches shorter than the others', which pads them; the plain loop has masks of NumPy."""
    build, shape, suited = MODELS[name]
    torch.manual_seed(0)
    module, rng = build(), np.random.default_rng(0)
    x, y = rng.normal(size=(40, *shape)).astype(np.float32), rng.integers(3, size=40)
    clients = []
    for k, steps in enumerate((4, 4, 2)):
        drawn = draw_batches(13 - k, 5, steps, np.random.default_rng(k))
        clients.append(drawn._replace(indices=drawn.indices + 13 * k, seeds=rng.integers(2**63, size=steps)))
    expected = np.stack([plainly(deepcopy(module), x, y, client) for client in clients])
    accepted = set()
    for cohort, make in ORACLES.items():
        model = FlatModel(deepcopy(module))
        assert model.random.are_needed
        try:
            choose(model, (x[:8], y[:8]), cohort)
        except ValueError:
            continue
        accepted.add(cohort)
        together = trained(make(model), x, y, clients)
        np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-6)
        for k, client in enumerate(clients):
            oracle = make(FlatModel(deepcopy(module)))
            np.testing.assert_allclose(trained(oracle, x, y, [client])[0], together[k], rtol=1e-5, atol=1e-7)
    assert accepted == suited
    assert choose(FlatModel(deepcopy(module)), (x[:8], y[:8]))[0] in suited


def plainly(model: nn.Module, x: NDArray[Any], y: NDArray[Any], client: BatchIndices) -> NDArray[Any]:
    """One client as anybody would write it, but for the masks."""

    class Masked(nn.Module):
        calls, seed = 0, 0

        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.p, self.whole = layer.p, isinstance(layer, StochasticDepth)

        def forward(self, x: Tensor) -> Tensor:
            Masked.calls += 1
            shape = (len(x), *[1] * (x.dim() - 1)) if self.whole else x.shape
            kept = masks(Masked.seed, Masked.calls, int(np.prod(shape)), self.p).reshape(shape)
            return x * torch.from_numpy(kept) / (1 - self.p)

    for path, layer in [*model.named_modules()]:
        if isinstance(layer, nn.Dropout | StochasticDepth):
            model.set_submodule(path, Masked(layer))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert client.seeds is not None
    for rows, seed in zip(client.split(), client.seeds.tolist(), strict=True):
        Masked.seed, Masked.calls = seed, 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()]).numpy()


class Recomputed(nn.Module):
    """A model that computes activations again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(checkpoint(self.body, x, use_reentrant=False))
        return out


def test_masks_that_would_be_drawn_twice_are_refused() -> None:
    model = FlatModel(Recomputed())
    model.random.begin(1, CPU)
    with pytest.raises(ValueError, match="turn activation checkpointing off"):
        model.gradient(model.vector, (torch.ones(2, 6), torch.zeros(2, dtype=torch.int64)))


def test_a_run_with_dropout_is_the_same_in_any_cohort(simulate: Callable[..., Any]) -> None:
    settings = {"model": "cnn3x3:hidden=5,dropout=0.5", "task": "digits", "num_clients": 4, "num_rounds": 2}
    settings |= {"local_steps": 2, "batch_size": 5, "strategy": "fedavg", "trace": "always"}
    chain, vmap, loop = (simulate(**settings, cohort=cohort).weights for cohort in ("chain", "vmap", "loop"))
    np.testing.assert_allclose(chain, loop, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vmap, loop, rtol=1e-4, atol=1e-5)
    alone = simulate(**settings, cohort="vmap", cohort_size=1).weights
    np.testing.assert_allclose(alone, vmap, rtol=1e-4, atol=1e-5)
