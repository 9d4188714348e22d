"""Strategies on Flower's Message API, held against its classic server: the same clients, the same weights."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server.strategy import FedAvg
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from message_grid import NODES, HereGrid, classic, identify, own_app_clients

import strategies
from fedtide.devices.message_strategy import MessageStrategy

ROOT = Path(__file__).parents[1]
OWN_APP = ROOT / "examples" / "own-app"
START = [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process make messages."""
    identify(monkeypatch)


@pytest.fixture
def client_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(OWN_APP)
    return importlib.import_module("client_app")


def make(name: str, **options: Any) -> Any:
    defaults = {"local_steps": 6, "batch_size": 5, "num_rounds": 6, "seed": 3}
    return strategies.make(name, ndarrays_to_parameters(START), **{**defaults, **options})


@pytest.mark.parametrize("name", ["fedavg", "scheme-c", "mimic"])
def test_the_weights_are_those_of_the_classic_server(name: str, client_app: Any) -> None:
    """Bit by bit, with clients that fail or do not answer; the names of arrays are the user's."""
    failing, silent = {2: [0, 4], 5: range(10)}, {2: [7], 3: [1, 2, 3]}
    absent = {t: [*failing.get(t, ()), *silent.get(t, ())] for t in range(7)}
    expected = make(name, clients_per_round=6)
    classic(expected, own_app_clients(client_app), 6, absent)

    strategy = make(name, clients_per_round=6)
    grid = HereGrid(client_app.app, failing=failing, silent=silent)
    adapter = MessageStrategy(strategy, min_clients=10)
    start = adapter.initial_arrays
    named = type(start)({f"layer.{key}": array for key, array in start.items()})
    result = adapter.start(grid, named, num_rounds=6, evaluate_fn=adapter.evaluate)
    np.testing.assert_array_equal(strategy.weights, expected.weights)
    assert np.abs(expected.weights).max() > 0.01
    assert grid.sent == 36
    assert list(result.arrays) == ["layer.0", "layer.1"]
    sent = np.concatenate([a.ravel() for a in result.arrays.to_numpy_ndarrays()])
    np.testing.assert_array_equal(sent, strategy.weights.astype(np.float32))
    active = [result.train_metrics_clientapp[t]["active"] for t in range(1, 7)]
    assert active[0] == 6
    assert active[4] == 0
    assert result.evaluate_metrics_serverapp == {}  # no evaluate_fn


def test_clients_come_and_go(client_app: Any) -> None:
    """A node that is offline is not asked, and its client keeps its name when it is back."""
    away = {1: [2], 2: [2, 5], 3: [], 4: [0]}
    strategy = make("mimic")
    adapter = MessageStrategy(strategy, min_clients=9)
    asked = []
    update = strategy.aggregate_fit

    def noted(server_round: int, results: Any, failures: Any) -> Any:
        asked.append(sorted(int(proxy.cid) for proxy, _ in results))
        return update(server_round, results, failures)

    strategy.aggregate_fit = noted
    adapter.start(HereGrid(client_app.app, away), adapter.initial_arrays, num_rounds=4)
    assert asked == [[k for k in range(10) if k not in away[t]] for t in (1, 2, 3, 4)]
    assert len(strategy.roster) == 10


def test_too_few_clients(client_app: Any) -> None:
    adapter = MessageStrategy(make("fedavg"), min_clients=11, connect_timeout=0.1)
    with pytest.raises(TimeoutError, match=r"after 0.1 s, 10 of 11 clients are connected"):
        adapter.start(HereGrid(client_app.app), adapter.initial_arrays, num_rounds=1)


def test_wrappers_of_the_message_api_change_the_weights(client_app: Any) -> None:
    """Flower's differential privacy for messages: the strategy goes on from the noised weights."""
    strategy = make("scheme-c", reboot="off")
    adapter = MessageStrategy(strategy, min_clients=10)
    private = DifferentialPrivacyServerSideFixedClipping(adapter, 0.5, 1.0, num_sampled_clients=10)
    result = private.start(HereGrid(client_app.app), adapter.initial_arrays, num_rounds=3)
    noised = np.concatenate([a.ravel() for a in result.arrays.to_numpy_ndarrays()])
    assert (noised - strategy.weights).std() == pytest.approx(0.05, rel=0.2)
    adapter.configure_train(4, result.arrays, {}, HereGrid(client_app.app))
    np.testing.assert_array_equal(strategy.weights.astype(np.float32), noised.astype(np.float32))


class Asked(NumPyClient):
    """Evaluates, and has no name."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return [array + config["by"] for array in parameters], 10, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return float(parameters[1][0]), 10, {}


def test_a_strategy_of_flower_that_evaluates_at_clients_without_a_name() -> None:
    app = ClientApp(client_fn=lambda context: Asked().to_client())
    adapter = MessageStrategy(FedAvg(min_available_clients=10), min_clients=10)
    with pytest.raises(ValueError, match="FedAvg has no initial parameters"):
        adapter.initial_arrays  # noqa: B018
    start = MessageStrategy(make("fedavg")).initial_arrays
    result = adapter.start(HereGrid(app), start, num_rounds=2, train_config=ConfigRecord({"by": 2.0}))
    assert [result.evaluate_metrics_clientapp[t]["loss"] for t in (1, 2)] == pytest.approx([2, 4])
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[1], 4, rtol=1e-6)
    assert {proxy.cid for proxy in adapter.manager.all().values()} == set(map(str, NODES))
