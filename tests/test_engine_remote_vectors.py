"""Vectors that stay on the nodes of a cluster where they were trained: the same bits, fewer on their way."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import ray
from flwr.server.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st
from test_buffers import MODEL
from test_engine_transports import RUN, without_times

from fedtide.engine.transports.ray import transport, workers
from fedtide.engine.transports.ray.calls import divide, ranges
from fedtide.engine.transports.ray.remote_vectors import VectorsOnNodes
from fedtide.engine.transports.ray.workers import Worker
from strategies.core import replies

CLIENTS = {"num_clients": 12, "clients_per_round": 0, "trace": "pools:first=8+lost:p=0.1"}
Simulate = Callable[..., Any]


class Traffic:
    """What came from nodes: vectors that were fetched, and sums."""

    def __init__(self) -> None:
        self.fetched, self.sums, self.left = list[int](), 0, 0


@pytest.fixture
def traffic(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Workers as on another machine, calls of two clients, sums over four, and what comes of that."""
    seen, fetch = Traffic(), VectorsOnNodes.fetch
    start_sum, add = VectorsOnNodes.start_sum, VectorsOnNodes.add

    def fetched(there: Any, vectors: Sequence[Any]) -> Any:
        seen.fetched.append(len(vectors))
        return fetch(there, vectors)

    def summed(*arguments: Any) -> Any:
        result = start_sum(*arguments)
        seen.sums += result is not None
        return result

    def added(*arguments: Any) -> Any:
        answers = add(*arguments)
        seen.left += len(answers.vectors)
        return answers

    monkeypatch.setattr(VectorsOnNodes, "fetch", fetched)
    monkeypatch.setattr(VectorsOnNodes, "start_sum", summed)
    monkeypatch.setattr(VectorsOnNodes, "add", added)
    monkeypatch.setattr(workers, "Worker", lambda actor, node, local: Worker(actor, "elsewhere", False))
    monkeypatch.setattr(transport, "KEPT", 0)
    monkeypatch.setattr(transport, "PART", 8 * 650)
    monkeypatch.setattr(replies, "BLOCK", 4)
    return seen


def test_sums_are_done_where_the_vectors_are(simulate: Simulate, traffic: Traffic) -> None:
    """Those that a sum needs; the last block of two or fewer is fetched."""
    inline = simulate(**RUN)
    run = simulate(**RUN, engine="ray", num_workers=2)
    np.testing.assert_array_equal(run.weights, inline.weights)
    assert without_times(run.records) == without_times(inline.records)
    counts = [len(record["active"]) for record in inline.rounds]
    assert traffic.left == sum(counts)
    assert traffic.sums == sum(count // 4 + (count % 4 > 2) for count in counts)
    assert traffic.fetched == [count % 4 for count in counts if 0 < count % 4 <= 2]


@pytest.mark.parametrize("method", ["mimic", "fedasync", "efl", "feddyn"])
def test_what_a_method_reads_is_fetched_once(simulate: Simulate, traffic: Traffic, method: str) -> None:
    """In the rounds after that, everything is sent at once."""
    run = {**CLIENTS, "strategy": method}
    inline, there = simulate(**run), simulate(**run, engine="ray", num_workers=1)
    np.testing.assert_array_equal(there.weights, inline.weights)
    assert without_times(there.records) == without_times(inline.records)
    if method == "feddyn":
        assert traffic.sums
    elif method != "efl":  # which sends no weights
        assert traffic.fetched == [len(inline.rounds[0]["active"])]


def test_strategies_of_flower_read_everything(simulate: Simulate, traffic: Traffic) -> None:
    def stock(experiment: Any) -> FedAvg:
        return FedAvg(min_fit_clients=1, min_available_clients=1, initial_parameters=experiment.initial)

    inline = simulate(**CLIENTS, stock=stock)
    there = simulate(**CLIENTS, stock=stock, engine="ray", num_workers=1)
    np.testing.assert_array_equal(there.weights, inline.weights)
    assert len(traffic.fetched) == 1


class Gone:
    """A process that has ended."""

    def vector(self) -> None:
        raise AssertionError("it has ended")


def test_a_vector_that_is_lost_is_trained_again(
    simulate: Simulate, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node may end between the training and the sum."""
    add, gone = VectorsOnNodes.add, ray.remote(Gone).remote()
    ray.kill(gone)

    def lost(there: Any, jobs: Any, answers: Any, references: Sequence[Any], node: str) -> Any:
        return add(there, jobs, answers, [gone.vector.remote(), *references[1:]], node)

    monkeypatch.setattr(VectorsOnNodes, "add", lost)
    inline = simulate(**CLIENTS)
    run = simulate(**CLIENTS, engine="ray", num_workers=1)
    np.testing.assert_array_equal(run.weights, inline.weights)
    assert any("trained once more" in note for record in run.rounds for note in record["notes"])


@pytest.mark.parametrize("method", ["fedavg", "mimic"])
def test_buffers_come_at_once(simulate: Simulate, traffic: Traffic, method: str) -> None:
    run = {**CLIENTS, "strategy": method, "model": MODEL, "num_rounds": 2}
    inline, there = simulate(**run), simulate(**run, engine="ray", num_workers=1)
    np.testing.assert_array_equal(there.weights, inline.weights)


JOBS = st.dictionaries(st.integers(0, 99), st.floats(0, 1000), max_size=40)


@given(JOBS, st.integers(1, 9))
def test_each_worker_gets_clients_that_follow_each_other(jobs: dict[int, float], num_workers: int) -> None:
    clients, work = np.array([*jobs], np.intp), [*jobs.values()]
    found = ranges(clients, work, num_workers)
    assert len(found) == num_workers
    assert [clients[i] for own in found for i in own] == sorted(clients)
    if work:
        assert max(sum(work[i] for i in own) for own in found) <= sum(work) / num_workers + max(work) + 1e-6


def test_nodes_get_ranges_too_with_this_one_first() -> None:
    """Whatever the order in which workers were ready."""
    ready = [Worker(None, node, node == "here") for node in ("b", "here", "a", "b", "here")]
    jobs: Any = [transport.Job(client, (), None, 1.0) for client in range(20)]  # type: ignore[arg-type]
    parts = divide(jobs, [1.0] * 20, ready, most=3)
    assert [part.node for part in parts] == ["here"] * 4 + ["a"] * 2 + ["b"] * 4
    assert [job.client for part in parts for job in part.jobs] == [*range(20)]
    assert {len(part.jobs) for part in parts} == {3, 1}
