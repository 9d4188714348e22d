"""A strategy on Flower's classic server, with clients that know nothing of us."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.common.logger import FLOWER_LOGGER
from message_grid import classic

import strategies


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
