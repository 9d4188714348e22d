"""What a client computes: batches, gradients on flat vectors, complete and incomplete training."""

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_clients_cohort import divided
from torch import nn
from torch.nn import functional

from clients.draws import client_rng, draw_batches
from clients.gradients.flat import FlatModel, one_thread
from clients.memory.handshake import Memory
from clients.simulated.evaluation import PoolingByHalves, evaluate
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, Failure, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.base.contract.metrics import of_row
from fedtide.tasks import PartitionedData

SIZES = [23, 7, 12]


def make_data(sizes: list[int] = SIZES) -> PartitionedData:
    return divided(sizes, (4,), 3)


def make_module(normalise: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        middle = [nn.BatchNorm1d(5)] if normalise else []
        return nn.Sequential(nn.Linear(4, 5), *middle, nn.Tanh(), nn.Linear(5, 3))


CONFIG = FitConfig(round=2, local_steps=6, batch_size=5, learning_rate=0.2)


def answers(
    completion: float = 1.0,
    client: int = 0,
    module: Any = make_module,
    seed: int = 4,
    virtual: VirtualClients | None = None,
    **changes: Any,
) -> Answers:
    virtual = virtual or VirtualClients(ClientEnvironment(make_data(), module, seed))
    config = replace(CONFIG, **changes)
    start = FlatModel(module()).vector.numpy()
    return virtual.fit(Broadcast(start), [Job(client, [], config, completion)])


def trained(*args: Any, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """The local weights and the metrics of a client that trains alone."""
    found = answers(*args, **kwargs)
    assert not found.failures
    return found.vectors[0], of_row(found.reported[0])


def train_in_pytorch(module: nn.Module, client: int, steps: list[np.ndarray], rate: float) -> list[float]:
    """The same training as anyone would write it in PyTorch; the losses."""
    optimiser, losses = torch.optim.SGD(module.parameters(), lr=rate), []
    for rows in steps:
        x, labels = make_data().examples(client, rows)
        optimiser.zero_grad()
        loss = functional.cross_entropy(module(torch.tensor(x)), torch.tensor(labels))
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


# Batches


def batches(n: int, size: int, steps: int, rng: np.random.Generator) -> list[np.ndarray]:
    drawn = draw_batches(n, size, steps, rng)
    longest = max(drawn.lengths)
    assert longest <= drawn.padded_length <= max(2, 1.25 * longest)
    return drawn.split()


@given(n=st.integers(1, 60), size=st.integers(0, 70), steps=st.integers(1, 40), seed=st.integers(0, 9))
def test_every_epoch_uses_each_example_once(n: int, size: int, steps: int, seed: int) -> None:
    """Fewer steps are the first of more."""
    drawn = batches(n, size, steps, np.random.default_rng(seed))
    assert len(drawn) == steps
    fewer = batches(n, size, -(-steps // 2), np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(fewer, drawn, strict=False))
    full = min(size or n, n)
    per_epoch = -(-n // full)
    for start in range(0, steps - per_epoch + 1, per_epoch):
        rows = np.concatenate(drawn[start : start + per_epoch])
        assert sorted(rows.tolist()) == list(range(n))
    for i, rows in enumerate(drawn):
        last_of_epoch = i % per_epoch == per_epoch - 1
        assert len(rows) == (n - full * (per_epoch - 1) if last_of_epoch else full)


# Training


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("completion", "steps"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_a_client_trains_for_as_long_as_it_is_available(
    completion: float, steps: int, normalise: bool
) -> None:
    found = answers(completion, module=lambda: make_module(normalise))
    (row,), (vector,) = found.reported, found.vectors
    metrics = of_row(row)
    plain = make_module(normalise)
    drawn = batches(SIZES[0], 5, 6, client_rng(4, b"batches", 0, 2))[:steps]
    if normalise:
        assert all(len(rows) > 1 for rows in drawn)
    losses = train_in_pytorch(plain, 0, drawn, rate=0.2)
    tensors = [*plain.parameters(), *(b for b in plain.buffers() if b.is_floating_point())]
    expected = np.concatenate([t.detach().numpy().ravel() for t in tensors])
    np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-6)
    assert metrics["steps"] == steps
    assert metrics["train-loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert metrics["final-loss"] == pytest.approx(losses[-1], rel=1e-5)
    assert (metrics["client-id"], metrics["round"]) == (0, 2)
    assert (row["client"], row["num_examples"], found.extra, found.memories) == (0, SIZES[0], [], [])


def test_a_client_without_steps_or_examples_fails() -> None:
    found = answers(0.0)
    assert not len(found.vectors)
    assert not len(found.reported)
    assert found.failures == [Failure(0, "dropped in mid-round")]
    found = answers(virtual=VirtualClients(ClientEnvironment(make_data([0, 3]), make_module, 4)))
    (failure,) = found.failures
    assert failure.client == 0
    assert failure.reason.endswith("the client has no examples")


def test_batches_depend_on_seed_client_and_round() -> None:
    vectors = [trained()[0], trained(seed=5)[0], trained(round=3)[0], trained(client=2)[0]]
    np.testing.assert_array_equal(trained()[0], vectors[0])
    assert all(not np.array_equal(vectors[0], other) for other in vectors[1:])
    drawn = {
        tuple(client_rng(s, p, k, t).integers(1 << 60, size=4))
        for s in (0, 1)
        for p in (b"a", b"b")
        for k in range(5)
        for t in range(5)
    }
    assert len(drawn) == 100


def test_a_farewell_leaves_the_others_weights_alone() -> None:
    """One client leaves and sends what it remembers; the other trains and sends its weights, in one call."""
    clients = VirtualClients(ClientEnvironment(make_data(), make_module, 4))
    start = clients.model.vector.numpy().copy()
    leaving = replace(CONFIG, last_accepted=1, farewell=True)
    memory = Memory({"gradient": np.arange(3.0)}, 1)
    found = clients.fit(Broadcast(start), [Job(1, [], leaving, 0.0, memory), Job(0, [], CONFIG, 1.0)])
    assert not found.failures
    np.testing.assert_array_equal(found.vectors, [trained()[0]])
    assert found.reported["client"].tolist() == [0]
    assert [*found.farewells] == [1]
    np.testing.assert_array_equal(found.farewells[1], [np.arange(3.0)])


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 1, 2, 2), (2, 8, 6), (2, 3, 8, 9)])
@pytest.mark.parametrize(
    "pooling",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d((2, 2), stride=2),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d((1, 2)),
        nn.MaxPool2d(2, return_indices=True),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.max_pool2d(input=x, kernel_size=2),
        lambda x: torch.max_pool2d(x, 2),
    ],
)
def test_pooling_by_halves_has_the_numbers_of_pytorch(pooling: Any, shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=shape))
    x.view(-1)[:4] = torch.tensor([np.nan, np.inf, -np.inf, 0])
    expected = pooling(x)
    with PoolingByHalves():
        found = pooling(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("much", [0.0, math.inf])
def test_evaluation_is_the_mean_whatever_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, four_threads: None, much: float
) -> None:
    """Batches at once, or one after the other: the same bits; a model that keeps something is copied.

    Every example counts once, also in a last batch that is smaller.
    """
    together = threading.Barrier(2, timeout=300)

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.kept = torch.empty(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = x
            if threading.current_thread() is not threading.main_thread():
                together.wait()  # another batch would have taken its place
            return self.layer(self.kept)

    model, rng = FlatModel(Keeping()), np.random.default_rng(0)
    x, y = rng.standard_normal((2600, 5)).astype(np.float32), rng.integers(0, 3, 2600)
    with torch.no_grad():
        outputs = model.module(torch.from_numpy(x)).double()
    expected = float(nn.functional.cross_entropy(outputs, torch.from_numpy(y)))
    correct = float((outputs.argmax(1).numpy() == y).mean())
    with one_thread():
        alone = evaluate(model, (x, y))
    monkeypatch.setattr("clients.simulated.evaluation.WORTH_COPIES", much)
    loss, accuracy = evaluate(model, (x, y))
    assert (loss, accuracy) == alone
    assert loss == pytest.approx(expected, rel=1e-5)
    assert accuracy == correct
    assert model.module.training
    with pytest.raises(ValueError, match="no examples"):
        evaluate(model, (x[:0], y[:0]))
