"""Personal models in whole runs: their memory, their evaluation, and what the records report."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients.gradients.flat import FlatModel
from clients.simulated.evaluation import evaluate, own_test

METHODS = ["apfl:alpha-mode=step", "pfedme"]
every_method = pytest.mark.parametrize("strategy", METHODS)

RUN: dict[str, Any] = {
    "partition": "classes:m=2",
    "trace": "bernoulli:p=0.6+lost:p=0.3",
    "learning_rate": 0.05,
    "num_rounds": 5,
    "seed": 1,
}


def personal_model(run: Any, client: int) -> np.ndarray:
    """Compute a client's model after the last round from its memory and the server's records."""
    memory = run.server.transport.memories.get(client)
    if memory is None:
        return run.weights
    state = memory.open(int(run.experiment.strategy.roster.accepted[client]))[0].committed
    if "theta" in state:
        return state["theta"]
    return state["alpha"] * state["v"] + (1 - state["alpha"]) * run.weights if state else run.weights


@every_method
@pytest.mark.parametrize("evaluate_on", ["test", "objective"])
def test_the_records_have_the_mean_over_personal_models(
    simulate: Callable[..., Any], strategy: str, evaluate_on: str
) -> None:
    run = simulate(**RUN, strategy=strategy, evaluate_on=evaluate_on)
    assert any("reply lost" in record["failed"].values() for record in run.rounds)
    data, model = run.experiment.data, FlatModel(run.experiment.build_model())
    online = np.flatnonzero(run.experiment.trace.round(5).online).tolist()
    scores = []
    for client in online:
        x, labels = own_test(data, client)
        held = data.train_set(np.array([client]))[1]
        assert set(labels) <= set(held)
        if evaluate_on == "test":
            assert len(labels) == np.isin(data.test[1], held).sum()
        else:
            assert len(labels) == len(data.holdout(np.array([client]))[1])
        model.load(personal_model(run, client).astype(np.float32))
        scores.append(evaluate(model, (x, labels)))
    last = run.rounds[-1]
    assert last["client_tested_clients"] == len(online)
    loss, accuracy = np.mean(scores, axis=0)
    assert last["client_loss"] == pytest.approx(loss, rel=1e-5)
    assert last["client_accuracy"] == pytest.approx(accuracy)
    assert 0 < len(online) < 6


@every_method
def test_members_evaluate_when_the_server_does(simulate: Callable[..., Any], strategy: str) -> None:
    """With two classes for each client, their models are better than the global one."""
    changes = {"trace": "always", "departures": "0=3", "arrivals": "5=5", "num_rounds": 12}
    run = simulate(**{**RUN, **changes}, strategy=strategy, evaluate_every=2)
    tested = {r["round"]: r["client_tested_clients"] for r in run.records if "client_accuracy" in r}
    assert tested == {2: 5, 4: 4, **dict.fromkeys((6, 8, 10, 12), 5)}
    assert [t for t, _ in run.history.losses_distributed] == [*tested]
    last = run.rounds[-1]
    assert last["client_accuracy"] > max(0.8, last["accuracy"])
