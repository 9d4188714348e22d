"""Criteria: losses and scores by hand, and derivatives that agree with autograd in every oracle."""

import random
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedtide
from clients.draws import draw_batches
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.chain import Chain
from clients.gradients.flat import FlatModel, as_tensor
from clients.gradients.linear import Compiled, StackedLinear
from clients.gradients.oracle import Loop, Vmap
from clients.simulated.evaluation import check_gradient, check_memory, check_outputs, evaluate
from fedtide.tasks import (
    BinaryCrossEntropy,
    Criterion,
    CrossEntropy,
    Dataset,
    Metric,
    PartitionedData,
    SquaredError,
)
from fedtide.tasks.criteria import IGNORED
from fedtide.tasks.language import NextToken

LN2 = float(np.log(2))


class Huber(Criterion):
    """A user's own loss."""

    metric = Metric("within-a-half")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.huber_loss(outputs, targets, reduction="none").mean(1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < 0.5).double().mean(1)


def test_classes_by_hand() -> None:
    outputs, targets = torch.tensor([[0.0, 0.0], [0.0, 100.0]]), torch.tensor([0, 0])
    assert CrossEntropy().losses(outputs, targets).tolist() == pytest.approx([LN2, 100])
    assert CrossEntropy().scores(outputs, targets).tolist() == [1, 0]


def test_sequences_by_hand() -> None:
    """Two texts of two characters each: means over the positions."""
    outputs = torch.tensor([[[0.0, 0.0], [0.0, 100.0]], [[0.0, 0.0], [0.0, 0.0]]])
    targets = torch.tensor([[0, 1], [1, 1]])
    assert CrossEntropy().losses(outputs, targets).tolist() == pytest.approx([LN2 / 2, LN2])
    assert CrossEntropy().scores(outputs, targets).tolist() == [1, 0]
    assert float(CrossEntropy().mean(outputs, targets)) == pytest.approx(0.75 * LN2)
    assert float(CrossEntropy().total(outputs, targets)) == pytest.approx(1.5 * LN2)


def test_numbers_by_hand() -> None:
    outputs = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    targets = torch.tensor([[0.0, 4.0], [0.0, 3.0]])
    assert SquaredError().losses(outputs, targets).tolist() == [2.5, 4.5]
    assert SquaredError(unit=10.0).scores(outputs, targets).tolist() == [15, 15]
    single = SquaredError().scores(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 2.0]))
    assert single.tolist() == [2, 0]


def test_labels_by_hand() -> None:
    outputs, targets = torch.tensor([[0.0, 50.0], [-50.0, -50.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert BinaryCrossEntropy().losses(outputs, targets).tolist() == pytest.approx([LN2, 50])
    assert BinaryCrossEntropy().scores(outputs, targets).tolist() == [1, 0.5]


CASES: dict[str, tuple[Criterion, tuple[int, ...], bool]] = {
    "classes": (CrossEntropy(), (), True),
    "numbers": (SquaredError(), (3,), False),
    "labels": (BinaryCrossEntropy(), (3,), False),
    "own": (Huber(), (3,), False),
}


@pytest.mark.parametrize("oracle", [Chain, StackedLinear, Vmap])
@pytest.mark.parametrize("case", CASES)
def test_all_oracles_agree_with_autograd(case: str, oracle: Any) -> None:
    criterion, shape, integers = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    model, rng = FlatModel(module, criterion=criterion), np.random.default_rng(2)
    lengths = np.array([6, 4])
    targets = rng.integers(2, size=(2, 6, *shape))
    weights = (np.arange(6) < lengths[:, None]) / lengths[:, None]
    batch = Batch(
        torch.from_numpy(rng.normal(size=(2, 6, 4))),
        torch.from_numpy(targets if integers else targets.astype(float)),
        torch.from_numpy(weights),
        lengths,
    )
    y = model.vector + 0.1 * torch.from_numpy(rng.normal(size=(2, len(model.vector))))
    expected, losses = Loop(model).gradient(y, batch)
    gradient, found = oracle(model).gradient(y.clone(), batch)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, losses, rtol=1e-10, atol=1e-12)
    examples = batch.inputs[0], batch.targets[0]
    by_hand = torch.stack(
        [Loop(model).gradient(y[:1], one_of(batch, k))[0][0].square() for k in range(6)]
    ).mean(0)
    torch.testing.assert_close(oracle(model).fisher(y[0], examples), by_hand, rtol=1e-9, atol=1e-12)


def one_of(batch: Batch, k: int) -> Batch:
    """The first client's example k alone."""
    row = slice(k, k + 1)
    return Batch(batch.inputs[:1, row], batch.targets[:1, row], batch.weights[:1, :1] * 6, np.array([1]))


def test_a_chain_of_layers_trains_on_sequences() -> None:
    """Each position has its own outputs; the derivative is computed by autograd at the last layer."""
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Unflatten(1, (2, 3))).double())
    outputs, targets = torch.randn(5, 2, 3, dtype=torch.float64), torch.randint(3, (5, 2))
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    errors, loss = model.criterion.error(outputs, targets, weights)
    leaf = outputs.clone().requires_grad_()
    model.criterion.mean(leaf, targets).backward()
    torch.testing.assert_close(errors, leaf.grad)
    torch.testing.assert_close(loss, model.criterion.mean(outputs, targets))


X, Y = np.zeros((4, 3)), np.array([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("train", "criterion", "outputs", "says"),
    [
        ((X, Y + 1), CrossEntropy(), 3, "training examples: labels 1 to 3 where the task has 3 classes"),
        ((X, Y / 2), CrossEntropy(), 3, "targets of type float32 where classes are numbered from 0"),
        ((X, Y[:3]), CrossEntropy(), 3, "training examples: 4 inputs, but 3 targets"),
        ((X + np.nan, Y), CrossEntropy(), 3, "training examples: a number is missing or infinite"),
        ((X - 1e300, Y), CrossEntropy(), 3, "a number as large as 1e[+]300 is beyond single precision"),
        ((X.astype(str), Y), CrossEntropy(), 3, "arrays of type <U32; they must be numbers"),
        ((X, Y), SquaredError(), 1, "targets of type int64 where floating-point numbers are expected"),
        ((X, X), SquaredError(), 2, "3 numbers in each target where the model has 2 outputs"),
        ((X, X + 0.5), BinaryCrossEntropy(), 3, "targets other than 0 and 1"),
    ],
)
def test_unsuitable_data_are_refused(train: Any, criterion: Any, outputs: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Dataset(train, train, outputs, criterion)


@pytest.mark.parametrize("name", ["losses", "scores"])
@pytest.mark.parametrize("shape", [(), (2, 1), "float"])
def test_a_criterion_returns_a_number_for_each_example(name: str, shape: Any) -> None:
    def wrong(self: Criterion, outputs: Tensor, targets: Tensor) -> Any:
        values = getattr(CrossEntropy, name)(self, outputs, targets)
        return values.mean().item() if shape == "float" else values[:, None] if shape else values.mean()

    criterion = type("Mine", (CrossEntropy,), {name: wrong, "total": Criterion.total})()
    pool = np.float32(X), Y
    data = PartitionedData.divide(pool, pool, 3, [np.arange(4)], 0.0, 0, criterion)
    says = re.escape(
        f"{name} of Mine return shape {() if shape == 'float' else shape} for 2 examples, not (2,)"
    )
    with pytest.raises(ValueError, match=says):
        check_outputs(FlatModel(nn.Linear(3, 3), criterion=criterion), data)


class Smoothed(CrossEntropy):
    """Cross-entropy with a third of the probability shared by all classes."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=1 / 3)


@pytest.mark.parametrize("kind", [Loop, Vmap, StackedLinear, Chain])
def test_a_cross_entropy_of_ones_own_is_what_is_minimised(kind: Any) -> None:
    x, y = torch.from_numpy(np.float32(X)), torch.from_numpy(Y)
    layer = nn.Linear(3, 3)
    model = FlatModel(nn.Sequential(nn.Flatten(), layer), criterion=Smoothed())
    functional.cross_entropy(layer(x), y, label_smoothing=1 / 3).backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([layer.weight.grad.ravel(), layer.bias.grad])  # type: ignore[union-attr]
    batch = Batch(x[None], y[None], torch.full((1, len(y)), 1 / len(y)), np.array([len(y)]))
    gradient, loss = kind(model).gradient(model.vector[None].clone(), batch)
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-4, atol=1e-6)
    smoothed = functional.cross_entropy(layer(x), y, label_smoothing=1 / 3)
    assert float(loss[0]) == pytest.approx(float(smoothed), rel=1e-5)


RARE = torch.tensor([0.01, 0.03, 0.0])


class Weighted(CrossEntropy):
    """Classes that count differently in every mean, the last one not at all."""

    def counts(self, targets: Tensor) -> Tensor:
        return RARE[targets]


class OwnWeighted(Criterion):
    """The same, made of PyTorch's functions alone."""

    metric = Metric("accuracy")
    losses, scores, counts = CrossEntropy.losses, CrossEntropy.scores, Weighted.counts


CHANGED: Any = CrossEntropy()  # an object, not a class
CHANGED.counts = Weighted().counts


@pytest.mark.parametrize("criterion", [Weighted(), OwnWeighted(), CHANGED])
def test_examples_that_count_differently(criterion: Any) -> None:
    """As with weights of classes in PyTorch: in the gradients of all oracles, and in evaluation."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), np.array([0, 1, 2, 1, 0, 0, 2, 1])
    layer = nn.Linear(3, 3)
    model = FlatModel(nn.Sequential(nn.Flatten(), layer), criterion=criterion)
    wanted = functional.cross_entropy(layer(as_tensor(x[:6])), as_tensor(y[:6]), RARE)
    wanted.backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([layer.weight.grad.ravel(), layer.bias.grad])  # type: ignore[union-attr]
    expected, start = expected.clone(), model.vector[None].clone()
    clients = [draw_batches(6, 0, 1, rng)]
    batch = CohortBatches(as_tensor(x), as_tensor(y), clients, torch.float32, criterion=criterion).step(0)
    rare = as_tensor(x[[2]]), as_tensor(y[[2]]), [draw_batches(1, 0, 1, rng)], torch.float32
    nothing = CohortBatches(*rare, criterion=criterion).step(0)  # counts in it
    counted = as_tensor(x[y != 2]), as_tensor(y[y != 2])
    squares = model.fisher_by_example(start[0], counted) * len(counted[1]) / len(y)
    torch.testing.assert_close(model.fisher_by_example(start[0], (as_tensor(x), as_tensor(y))), squares)
    for kind in (Loop, Vmap, StackedLinear, Chain):
        found = kind(model).fisher(start[0], (as_tensor(x), as_tensor(y)))
        torch.testing.assert_close(found, squares, rtol=1e-4, atol=1e-6)
        gradient, loss = kind(model).gradient(start, batch)
        torch.testing.assert_close(gradient[0], expected, rtol=1e-4, atol=1e-6)
        assert float(loss[0]) == pytest.approx(float(wanted), rel=1e-5)
        gradient, loss = kind(model).gradient(start, nothing)
        assert not gradient.any()
        assert not loss.any()
    with pytest.raises(ValueError, match="for classes, with cross-entropy"):
        Compiled(model)
    model.load(start[0])
    loss_found, score = evaluate(model, (x[:6], y[:6]))
    assert loss_found == pytest.approx(float(wanted), rel=1e-5)
    right, weights = (layer(as_tensor(x[:6])).argmax(1).numpy() == y[:6]), RARE[y[:6]].numpy()
    assert score == pytest.approx((right * weights).sum() / weights.sum(), rel=1e-5)
    assert np.isnan(evaluate(model, (x[:1], np.array([2])))).all()


def test_clients_of_whom_nothing_counts_have_no_score(tmp_path: Path) -> None:
    """They are neither the worst, nor a group."""
    rng = np.random.default_rng(0)
    x, y, clients = rng.normal(size=(80, 3)), rng.integers(2, size=80), np.repeat(np.arange(4), 20)
    y[:20] = 2
    groups = np.array(["a", "b", "b", "b"])[clients]
    task = fedtide.Task.from_arrays(x, y, clients=clients, groups=groups, test=(x, y), criterion=Weighted())
    few: dict[str, Any] = {"num_clients": 4, "num_rounds": 1, "trace": "always", "run_dir": str(tmp_path)}
    record = fedtide.run(task=task, evaluate_clients=1, **few).records[-1]
    assert [*record["groups"]["group"]] == ["b"]
    assert record["groups"]["group"]["b"]["clients"] == 3
    assert 0 <= record["worst_client_accuracy"] <= 1


def test_small_weights_of_classes_in_half_precision() -> None:
    outputs, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 1, 0, 1])

    class Light(CrossEntropy):
        def counts(self, targets: Tensor) -> Tensor:
            return 1e-4 * RARE[targets]

    found = Light().mean(outputs.half(), targets)
    assert float(found) == pytest.approx(float(functional.cross_entropy(outputs, targets, RARE)), rel=1e-2)


def test_a_batch_of_padding_has_no_loss() -> None:
    assert NextToken(4, 5).mean(torch.randn(2, 4, 5), torch.full((2, 4), IGNORED)) == 0


class Text(nn.Module):
    """A transformer over tokens of which 0 is padding; PyTorch does not take texts of padding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)
        layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.encoder(self.vectors(x), src_key_padding_mask=x == 0)
        return self.out(states.mean(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_models_are_tried_on_examples_not_on_padding() -> None:
    x = np.array([[1, 2, 0], [3, 0, 0], [4, 1, 2], [2, 0, 0]])
    data = PartitionedData.divide((x, Y), (x, Y), 3, [np.arange(4)], 0.0, 0)
    model = FlatModel(Text())
    for check in (check_outputs, check_gradient, check_memory):
        check(model, data)


def test_categories_may_be_floating_point() -> None:
    """As in a table, where they stand beside numbers; the trial has no others."""

    class Categories(nn.Embedding):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, 0].long())

    x = np.float32([[0], [1], [2], [0]])
    data = PartitionedData.divide((x, Y), (x, Y), 3, [np.arange(4)], 0.0, 0)
    check_outputs(FlatModel(Categories(3, 3)), data)


class Learned(Smoothed):
    """A loss with a weight of its own, as of several tasks."""

    def __init__(self, trained: bool) -> None:
        self.weight = nn.Parameter(torch.ones(()), requires_grad=trained)


def test_a_criterion_has_nothing_to_train() -> None:
    x = np.float32(X)
    for trained in (False, True):
        data = PartitionedData.divide((x, Y), (x, Y), 3, [np.arange(4)], 0.0, 0, Learned(trained))
        model = FlatModel(nn.Linear(3, 3), criterion=data.criterion)
        if not trained:
            check_outputs(model, data)
            continue
        with pytest.raises(ValueError, match=r"^Learned has weights of its own, .* requires_grad to False"):
            check_outputs(model, data)


def test_the_shape_of_outputs_is_said() -> None:
    """As of a segmentation, whose classes PyTorch has in the second place."""
    x, y = np.zeros((4, 2, 4, 5), np.float32), np.zeros((4, 4, 5), np.int64)
    data = PartitionedData.divide((x, y), (x, y), 3, [np.arange(4)], 0.0, 0)
    says = re.escape("it returns shape (2, 3, 4, 5) for 2 examples, where the last number has to be 3")
    with pytest.raises(ValueError, match=says):
        check_outputs(FlatModel(nn.Conv2d(2, 3, 1)), data)


def test_a_model_that_draws_in_evaluation_is_refused() -> None:
    """Its scores would be others each time."""

    class Careless(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(functional.dropout(x, 0.5))

    data = PartitionedData.divide((np.float32(X), Y), (np.float32(X), Y), 3, [np.arange(4)], 0.0, 0)
    with pytest.raises(
        ValueError, match=r"draws random numbers in evaluation, too: .* training=self\.training"
    ):
        check_memory(FlatModel(Careless(3, 3)), data)


def test_another_thread_may_draw_while_a_model_is_tried() -> None:
    """As Flower's heartbeat does."""
    waiting = [threading.Thread(target=random.random)]

    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            while waiting:
                waiting[0].start()
                waiting.pop().join()
            return super().forward(x)

    data = PartitionedData.divide((np.float32(X), Y), (np.float32(X), Y), 3, [np.arange(4)], 0.0, 0)
    check_memory(FlatModel(Slow(3, 3)), data)
    assert not waiting


def test_splits_must_be_alike() -> None:
    with pytest.raises(ValueError, match=r"inputs of shape \(3,\) and type float32 in the training"):
        Dataset((X, Y), (X[:, :2], Y), 3)


def test_data_are_converted_to_what_models_train_in() -> None:
    for x, y in ((X.astype(np.float16), Y.astype(np.uint8)), (np.float32(X)[:, ::-1], Y[::-1] > 0)):
        dataset = Dataset((X, Y.astype(np.int32)), (x, y), 3)
        assert [a.dtype for pair in (dataset.train, dataset.test) for a in pair] == [np.float32, np.int64] * 2
        for given, made in zip((x, y), dataset.test, strict=True):
            np.testing.assert_array_equal(as_tensor(made).numpy(), given)
