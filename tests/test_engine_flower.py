"""Flower's own strategies and interfaces on fedtide's engine."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    EvaluateIns,
    FitIns,
    GetParametersIns,
    GetPropertiesIns,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.criterion import Criterion
from flwr.server.strategy import FedAvg

from fedtide.config import Settings
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.experiment import prepare
from fedtide.engine.run import virtual_transport
from fedtide.plan import Plan
from strategies.core.round import ClientFailure

INLINE: dict[str, Any] = {"model": "logistic", "engine": "inline", "client_gpus": 0.0}


def plain(experiment: Any) -> Any:
    """Return initial parameters in the form that Flower's users make."""
    return ndarrays_to_parameters(experiment.initial.arrays())


def stock_fedavg(experiment: Any) -> FedAvg:
    return FedAvg(
        fraction_evaluate=0.0,
        initial_parameters=plain(experiment),
        evaluate_fn=experiment.evaluator,
    )


# Flower's strategies


def test_flowers_fedavg_selects_the_clients_that_are_online(simulate: Callable[..., Any]) -> None:
    run = simulate(trace="bernoulli:p=0.4", stock=stock_fedavg, num_rounds=6, seed=3)
    counts = set()
    for record in run.rounds:
        online = np.flatnonzero(run.experiment.trace.round(record["round"]).online)
        expected = online.tolist() if len(online) >= 2 else []  # its min_available_clients
        assert record["selected"] == record["active"] == expected
        counts.add(len(expected))
    assert len(counts) > 1


def test_steps_that_a_client_counts_in_numpy_are_recorded(simulate: Callable[..., Any]) -> None:
    """Clients in this process may report NumPy's numbers."""

    class Counting(FedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            for proxy, result in results:
                result.metrics["steps"] = np.int64(3) if proxy.cid == "0" else "many"
            return super().aggregate_fit(server_round, results, failures)

    run = simulate(trace="always", num_clients=2, stock=lambda made: Counting(initial_parameters=plain(made)))
    assert [json.loads(json.dumps(record["steps"])) for record in run.rounds] == [[3, None]] * 3


def test_a_strategy_without_initial_parameters_is_refused(simulate: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="no initial parameters"):
        simulate(stock=lambda _: FedAvg())


# The client manager


@pytest.fixture(scope="module")
def manager() -> TraceClientManager:
    experiment = prepare(Plan.of(Settings(**INLINE, trace="bernoulli:p=0.5", num_clients=20, arrivals="3=4")))
    return TraceClientManager(experiment.clock.round, virtual_transport(experiment), seed=1)


class Even(Criterion):
    def select(self, client: Any) -> bool:
        return int(client.cid) % 2 == 0


def online(manager: TraceClientManager, server_round: int) -> list[int]:
    now = manager.availability(server_round)
    return np.flatnonzero(now.member & now.online).tolist()


@pytest.mark.parametrize("server_round", [1, 2, 5, 4])
def test_the_manager_reports_the_clients_that_are_online(
    manager: TraceClientManager, server_round: int
) -> None:
    manager.begin(server_round)
    expected = online(manager, server_round)
    assert 0 < len(expected) < 20
    assert manager.available(server_round).tolist() == expected
    assert manager.num_available() == len(expected)
    assert manager.all().keys() == {str(client) for client in expected}
    assert all(proxy.cid == name for name, proxy in manager.all().items())
    assert manager.wait_for(len(expected))
    assert not manager.wait_for(len(expected) + 1, timeout=1)
    assert 3 not in expected or server_round >= 4


def test_the_manager_samples_available_clients(manager: TraceClientManager) -> None:
    drawn = {}
    for server_round in (1, 2, 3):
        manager.begin(server_round)
        available = online(manager, server_round)
        sample = [int(proxy.cid) for proxy in manager.sample(4)]
        assert len(set(sample)) == 4
        assert set(sample) <= set(available)
        assert [int(proxy.cid) for proxy in manager.sample(4)] == sample  # by seed and round
        assert {int(proxy.cid) for proxy in manager.sample(99)} == set(available)
        assert manager.sample(4, min_num_clients=len(available) + 1) == []
        even = [int(proxy.cid) for proxy in manager.sample(99, criterion=Even())]
        assert even == [client for client in available if client % 2 == 0]
        drawn[server_round] = sample
    assert len({tuple(sample) for sample in drawn.values()}) > 1


def test_the_manager_reports_arrivals_and_departures(manager: TraceClientManager) -> None:
    changes = {t: [part.tolist() for part in manager.membership_changes(t)] for t in (1, 2, 3, 4, 5)}
    assert changes == {1: [[], []], 2: [[], []], 3: [[], []], 4: [[3], []], 5: [[], []]}


# One client at a time, as other Flower servers ask them


def test_a_proxy_can_be_used_alone() -> None:
    experiment = prepare(Plan.of(Settings(**INLINE, trace="always", num_clients=6, evaluate_on="objective")))
    transport = virtual_transport(experiment)
    proxy = transport.proxy(4)
    assert proxy.get_properties(GetPropertiesIns({}), None, 1).properties == {"client-id": 4}
    parameters = proxy.get_parameters(GetParametersIns({}), None, 1).parameters
    for got, sent in zip(parameters_to_ndarrays(parameters), experiment.initial.arrays(), strict=True):
        np.testing.assert_array_equal(got, sent)
    result = proxy.fit(FitIns(plain(experiment), {"local-steps": 2}), None, 1)
    assert (result.num_examples, result.metrics["steps"]) == (int(experiment.data.sizes[4]), 2)
    assert [a.shape for a in parameters_to_ndarrays(result.parameters)] == [(10, 64), (10,)]
    tested = proxy.evaluate(EvaluateIns(plain(experiment), {}), None, 1)
    assert tested.num_examples == len(experiment.data.holdout(np.array([4]))[1])
    with pytest.raises(ClientFailure, match="client 4: unknown rule 'nothing'"):
        proxy.fit(FitIns(plain(experiment), {"rule": "nothing"}), None, 1)
