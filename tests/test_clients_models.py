"""Every model at a tiny size: a client gets the same numbers alone and with others, drop-outs included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.base.contract.metrics import of_row
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import Augmentation, Dataset, DatasetTask, PartitionedData

LOOP = [
    "cnn3x3:hidden=5,dropout=0.5",
    "vgg11:width=1,hidden=4,norm=batch,dropout=0.5",
    "resnet18:width=1,norm=batch",
]
TOGETHER = [("stacked", "mlp:hidden=5"), ("chain", "cnn3x3:hidden=6+5"), ("chain", "vgg11:width=1,hidden=4")]
TOGETHER += [("chain", LOOP[0]), ("vmap", LOOP[0]), ("vmap", "vgg11:width=1,hidden=4,dropout=0.5")]
TOGETHER += [("vmap", "resnet18:width=1"), ("vmap", "vgg11:width=1,hidden=4,norm=group")]


def images(augmented: bool) -> PartitionedData:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, 2, 8, 8)), rng.integers(3, size=40)
    changes = Augmentation(crop=True, flip=True, black=(0.5, -1.0)) if augmented else None
    dataset = Dataset((x, y), (x[:5], y[:5]), 3, augmentation=changes)
    task = DatasetTask("images", lambda: dataset)
    divided = task.federate(3, lambda *_: np.split(np.arange(40), [19, 26]), lambda *_: np.ones(3), 0.0, 0)
    assert isinstance(divided, PartitionedData)
    return divided


def clients(model: str, cohort: str, size: int = 3, data: Any = None) -> VirtualClients:
    data = data or images(True)
    federation = Federation.of(Settings(model=model, seed=1))
    federation.data = data
    return VirtualClients(
        ClientEnvironment(data, federation.model_builder(), 3, cohort=cohort, cohort_size=size)
    )


def fit(virtual: VirtualClients, chosen: Any = range(3), completion: float = 1.0) -> Answers:
    config = FitConfig(round=4, local_steps=3, batch_size=4, learning_rate=0.1)
    weights = virtual.model.vector.numpy().copy()
    return virtual.fit(Broadcast(weights), [Job(k, [], config, completion) for k in chosen])


@pytest.mark.parametrize("model", LOOP)
def test_dropout_crops_and_running_means_are_the_clients_own(model: str) -> None:
    """To the last bit, whoever trained before; and they are new in every step."""
    together = fit(clients(model, "loop"))
    assert not together.failures
    for k, row in enumerate(together.vectors):
        virtual = clients(model, "loop")
        fit(virtual, [1])
        virtual.model.load(clients(model, "loop").model.vector)
        np.testing.assert_array_equal(fit(virtual, [k]).vectors[0], row)


@pytest.mark.parametrize(("cohort", "model"), TOGETHER)
def test_a_cohort_returns_what_each_client_returns_alone(cohort: str, model: str) -> None:
    alone, together = fit(clients(model, "loop")), fit(clients(model, cohort))
    order = together.reported["client"]
    np.testing.assert_allclose(together.vectors, alone.vectors[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["characters", "vectors"])
def test_texts_train(kind: str) -> None:
    """LSTMs train one client after the other, unless `vmap` can do it as well."""
    rng = np.random.default_rng(0)
    x = rng.integers(6, size=(30, 5)) if kind == "characters" else rng.normal(size=(30, 5, 3))
    y = rng.integers(2, size=30)
    data = PartitionedData.divide(
        *(Dataset((x, y), (x, y), 2).train,) * 2, 2, np.split(np.arange(30), 3), 0.0, 0
    )
    model = "lstm:hidden=4,embedding=3,dropout=0.5,vocabulary=6"
    together = fit(clients(model, "auto", data=data))
    for k, row in enumerate(together.vectors):
        np.testing.assert_array_equal(fit(clients(model, "auto", data=data), [k]).vectors[0], row)
    assert np.ptp(together.vectors, axis=0).any()


def test_dropout_and_crops_change_a_run() -> None:
    plain, augmented = (clients("cnn3x3:hidden=5", "loop", data=images(a)) for a in (False, True))
    dropping = clients("cnn3x3:hidden=5,dropout=0.5", "loop", data=images(False))
    vectors = [fit(virtual).vectors for virtual in (plain, augmented, dropping)]
    assert dropping.draws is True
    assert not np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
    # What an incomplete client did are the first steps of a complete one.
    whole, first = (of_row(fit(augmented, [0], share).reported[0]) for share in (1.0, 0.4))
    assert first["steps"] == 1
    assert whole["steps"] == 3


def test_the_central_trainer_has_the_same_models(simulate: Callable[..., Any]) -> None:
    run = {"strategy": "sequential-sgd", "model": LOOP[1], "num_rounds": 2, "num_clients": 4}
    one, other = simulate(**run), simulate(**run)
    np.testing.assert_array_equal(one.weights, other.weights)
    strategy = one.experiment.strategy
    assert len(strategy.buffers) == len(one.weights) - strategy.layout.size > 0
    assert np.abs(strategy.buffers).min() > 0
