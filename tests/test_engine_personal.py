"""Personal models over whole runs: what clients keep, what they are tested on, and what is reported."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
import torch

from clients.evaluation import evaluate, own_test
from clients.gradients.flat import FlatModel

METHODS = ["apfl:alpha-mode=step", "pfedme"]
every_method = pytest.mark.parametrize("strategy", METHODS)

RUN: dict[str, Any] = {
    "partition": "classes:m=2",
    "trace": "bernoulli:p=0.6+lost:p=0.3",
    "learning_rate": 0.05,
    "num_rounds": 5,
    "seed": 1,
}


def personal_model(played: Any, client: int) -> np.ndarray:
    """What a client uses after the last round, from what it remembers and what the server accepted."""
    memory = played.server.transport.memories.get(client)
    if memory is None:
        return played.weights
    state = memory.open(int(played.experiment.strategy.roster.accepted[client]))[0].committed
    if "theta" in state:
        return state["theta"]
    return state["alpha"] * state["v"] + (1 - state["alpha"]) * played.weights if state else played.weights


@every_method
@pytest.mark.parametrize("evaluate_on", ["test", "members"])
def test_the_mean_over_personal_models_is_reported(
    play: Callable[..., Any], strategy: str, evaluate_on: str
) -> None:
    played = play(**RUN, strategy=strategy, evaluate_on=evaluate_on)
    assert any("reply lost" in record["failed"].values() for record in played.rounds)
    data, model = played.experiment.data, FlatModel(played.experiment.build_model())
    online = np.flatnonzero(played.experiment.trace.round(5).online).tolist()
    scores = []
    for client in online:
        x, labels = own_test(data, client)
        held = data.train_set(np.array([client]))[1]
        assert set(labels) <= set(held)
        if evaluate_on == "test":
            assert len(labels) == np.isin(data.test[1], held).sum()
        else:
            assert len(labels) == len(data.holdout(np.array([client]))[1])
        model.load(personal_model(played, client).astype(np.float32))
        scores.append(evaluate(model, (x, labels)))
    last = played.rounds[-1]
    assert last["client_evaluated"] == len(online)
    loss, accuracy = np.mean(scores, axis=0)
    assert last["client_loss"] == pytest.approx(loss, rel=1e-5)
    assert last["client_accuracy"] == pytest.approx(accuracy)
    assert 0 < len(online) < 6


@every_method
def test_clients_evaluate_when_the_server_does(play: Callable[..., Any], strategy: str) -> None:
    played = play(**{**RUN, "trace": "always"}, strategy=strategy, evaluate_every=2)
    assert [r["round"] for r in played.records if "client_accuracy" in r] == [2, 4, 5]
    assert [t for t, _ in played.history.losses_distributed] == [2, 4, 5]


@every_method
def test_who_has_departed_does_not_evaluate(play: Callable[..., Any], strategy: str) -> None:
    changes = {"trace": "always", "departures": "0=3", "arrivals": "5=4"}
    played = play(**{**RUN, **changes}, strategy=strategy)
    assert [r["client_evaluated"] for r in played.rounds] == [5, 5, 4, 5, 5]


@every_method
def test_personal_models_beat_the_global_one_on_two_classes(play: Callable[..., Any], strategy: str) -> None:
    last = play(**{**RUN, "trace": "always", "num_rounds": 12}, strategy=strategy).rounds[-1]
    assert last["client_accuracy"] > max(0.8, last["accuracy"])


@pytest.mark.slow
@every_method
def test_ray_gives_what_inline_gives(play: Callable[..., Any], strategy: str, ray_cluster: None) -> None:
    here, there = (
        play(**RUN, strategy=strategy, engine=engine, num_workers=2) for engine in ("inline", "ray")
    )
    np.testing.assert_array_equal(there.weights, here.weights)
    kept = there.server.transport.memories  # in the object store
    assert kept.keys() == here.server.transport.memories.keys()
    for client, memory in here.server.transport.memories.items():
        for key, value in memory.pending.items():
            np.testing.assert_array_equal(ray.get(kept[client]).pending[key], value)
    for key in ("active", "failed", "client_accuracy", "client_loss", "client_evaluated"):
        assert [r.get(key) for r in there.rounds] == [r.get(key) for r in here.rounds], key


def test_a_gradient_elsewhere_leaves_the_model_where_it_is(play: Callable[..., Any]) -> None:
    experiment = play(num_rounds=1).experiment
    model = FlatModel(experiment.build_model())
    x, labels = (torch.from_numpy(part) for part in experiment.data.examples(0, np.arange(5)))
    before = model.vector.clone()
    elsewhere = before + 1
    model.gradient(elsewhere, (x, labels))
    torch.testing.assert_close(model.vector, before, rtol=0, atol=0)
    torch.testing.assert_close(elsewhere, before + 1, rtol=0, atol=0)
