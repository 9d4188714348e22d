"""A strategy in somebody's own Flower project: Flower's server, and clients that know nothing of us."""

import importlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.common.logger import FLOWER_LOGGER
from flwr.server import ServerApp
from message_grid import classic, own_app_clients

import strategies

ROOT = Path(__file__).parents[1]


class Moving(NumPyClient):
    """Moves each weight by 1, and reports what it was told to report."""

    def __init__(self, reports: dict[str, Any], sends: Callable[[Any], Any] = lambda arrays: arrays) -> None:
        self.reports, self.sends = reports, sends

    def fit(self, parameters: Any, config: Any) -> Any:
        return self.sends([array + 1 for array in parameters]), 10, dict(self.reports)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What Flower's logger is told at WARNING."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keep(logging.WARNING)
    FLOWER_LOGGER.addHandler(handler)
    yield found
    FLOWER_LOGGER.removeHandler(handler)


def test_rejected_replies_are_told_and_counted(warnings: list[str]) -> None:
    """Each reason once for each client, numbers aside; steps as a float count if they are whole."""
    clients = {
        "whole": Moving({"steps": 3.0}).to_client(),
        "half": Moving({"steps": 3.5}).to_client(),
        "broken": Moving({}, lambda arrays: [np.nan * array for array in arrays]).to_client(),
        "other": Moving({}, lambda arrays: arrays[:1]).to_client(),
        "wrong": Moving({"steps": 99}).to_client(),
    }
    strategy = strategies.make("fedavg", ndarrays_to_parameters([np.zeros((2, 3)), np.zeros(3)]))
    metrics = classic(strategy, clients, 2).metrics_distributed_fit
    np.testing.assert_array_equal(strategy.weights, 2)
    told = {
        "half": "impossible number of steps 3.5 of 10",
        "broken": "weights are not finite",
        "other": "arrays of shapes [(2, 3)] where [(2, 3), (3,)] are expected",
        "wrong": "impossible number of steps 99 of 10",
    }
    said = [f"round 1: the reply of client {name} does not count: {why}" for name, why in told.items()]
    assert sorted(warnings) == sorted(said)
    counted = {
        "active": 1,
        "rejected": 4,
        "rejected: impossible number of steps N of N": 2,
        "rejected: weights are not finite": 1,
        "rejected: arrays of shapes [(N, N)] where [(N, N), (N,)] are expected": 1,
    }
    assert metrics == {key: [(1, count), (2, count)] for key, count in counted.items()}


def example(file: str, marker: str) -> dict[str, Any]:
    """Run the Python code that follows a marker in a Markdown file; return what it defines."""
    text = (ROOT / file).read_text(encoding="utf-8")
    (code,) = re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", text, re.DOTALL)
    defined: dict[str, Any] = {"torch": torch}
    exec(code, defined)
    return defined


def test_the_server_in_the_readme(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    """With the client of examples/own-app, which has one or two digits and does a part of its steps."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "own-app")
    app = importlib.import_module("client_app")
    server = example("docs/own-project.md", "own server")
    assert isinstance(server["app"], ServerApp)
    made = server["server_fn"](None)
    history = classic(made.strategy, own_app_clients(app), made.config.num_rounds)
    (first, *_, last) = [accuracy for _, accuracy in history.metrics_centralized["accuracy"]]
    assert first < 0.2
    assert last > 0.7
    assert {count for _, count in history.metrics_distributed_fit["active"]} == {5}
    assert warnings == []


def test_a_model_with_batch_normalisation() -> None:
    """The code of the example's README leaves the integers out, and puts the rest where it was."""
    code = example("examples/own-app/README.md", "floating point only")
    here, there = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)) for _ in range(2))
    here(torch.ones(5, 3))
    weights = code["get_weights"](here)
    strategies.make("fedavg", ndarrays_to_parameters(weights))
    code["set_weights"](there, weights)
    assert all(map(np.array_equal, code["get_weights"](there), weights))
    assert int(there[1].num_batches_tracked) == 0


def test_under_the_engine_which_records_them_nothing_is_logged(
    simulate: Callable[..., Any], warnings: list[str]
) -> None:
    run = simulate(trace="always", strategy="fedavg", model="mlp", learning_rate=1e9)
    assert any("weights" in why for record in run.rounds for why in record["failed"].values())
    assert warnings == []


def test_integer_buffers_are_refused_with_the_way_out() -> None:
    arrays = [np.zeros(3, np.float32), np.array(0, np.int64)]
    with pytest.raises(ValueError, match=r"array 1 .* is int64.*num_batches_tracked.*is_floating_point"):
        strategies.make("fedavg", ndarrays_to_parameters(arrays))
