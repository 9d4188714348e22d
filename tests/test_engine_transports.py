"""The same run inline and on Ray."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import SMALL
from flwr.common import parameters_to_ndarrays
from hypothesis import given
from hypothesis import strategies as st

from fedtide.config import Settings
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.experiment import prepare
from fedtide.engine.run import virtual_transport
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.ray.calls import assign
from fedtide.plan import Plan

RUN: dict[str, Any] = {
    "strategy": "scheme-c",
    "trace": "pools:first=8",
    "num_clients": 12,
    "clients_per_round": 9,
    "seed": 13,  # with it, selected clients drop in mid-round
    "evaluate_on": "objective",
    "arrivals": "11=2",
    "departures": "0=3",
}


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_the_same_seed_gives_the_same_run(simulate: Callable[..., Any]) -> None:
    inline, again = simulate(**RUN), simulate(**RUN)
    assert any(record["failed"] for record in inline.rounds)
    assert any(0 < steps < 4 for record in inline.rounds for steps in record["steps"])
    assert [e["event"] for record in inline.rounds for e in record["events"]] == ["arrival", "departure"]
    np.testing.assert_array_equal(again.weights, inline.weights)
    assert without_times(again.records) == without_times(inline.records)
    assert not np.array_equal(simulate(**{**RUN, "seed": 0}).weights, inline.weights)
    phases = ["select", "train", "broadcast", "collect", "transfer", "aggregate", "evaluate", "write"]
    for record in inline.rounds:
        assert sorted(record["seconds"]) == sorted(phases)
        assert record["seconds"]["train"] > 0
        assert min(record["seconds"].values()) >= 0


WORK = st.lists(st.floats(0, 1000, allow_nan=False), max_size=40)


@given(WORK, st.integers(1, 9))
def test_jobs_are_assigned_once_and_evenly(work: list[float], num_workers: int) -> None:
    assigned = assign(work, num_workers)
    assert len(assigned) == num_workers
    assert sorted(position for positions in assigned for position in positions) == list(range(len(work)))
    loads = [sum(work[position] for position in positions) for positions in assigned]
    for positions, load in zip(assigned, loads, strict=True):
        if positions:  # its last job, the shortest, went to the worker with the least load at that time
            assert load - work[positions[-1]] <= min(loads) + 1e-9
            assert work[positions[-1]] == min(work[position] for position in positions)


# Without and with memory at the clients, packed uploads, personal models, late replies, and probes.
METHODS = ("scheme-c", "mimic:memory=client", "efl", "apfl:alpha-mode=step", "pfedme", "fedbuff")
RUNS = [(method, "") for method in METHODS] + [("mimic:memory=client", "two-norm:min-change=0")]
MIXED: dict[str, Any] = {
    "trace": "pools:first=8+lost:p=0.1",
    "num_clients": 12,
    "partition": "dirichlet:alpha=1",
    "learning_rate": 0.05,
    "arrivals": "11=2",
    "departures": "0=3",
    "cohort": "stacked",
    "cohort_size": 5,
}


@pytest.mark.slow
def test_ray_gives_the_same_result_as_inline(simulate: Callable[..., Any], ray_cluster: None) -> None:
    """Not only close. One transport for all methods, as starting its actors takes longer than all rounds."""
    settings = Settings(**{**SMALL, **MIXED, "engine": "ray", "num_workers": 3})
    clients = virtual_transport(prepare(Plan.of(settings)))
    late = {"trace": MIXED["trace"] + "+late:p=0.3,rounds=2", "num_rounds": 4}
    try:
        for method, initial in RUNS:
            more = {**late, "initial_model": initial}
            experiment = prepare(Plan.of(replace(settings, strategy=method, **more)))
            clients.memories.clear()
            transport = experiment.timed(clients)
            manager = TraceClientManager(experiment.clock.round, transport, settings.seed)
            records: list[dict[str, Any]] = []
            server = RoundServer(experiment.strategy, manager, 1, [records.append])
            server.fit(experiment.settings.num_rounds)
            weights = np.concatenate([a.ravel() for a in parameters_to_ndarrays(server.parameters)])
            here = simulate(**{**MIXED, **more}, strategy=method)
            np.testing.assert_array_equal(weights, here.weights, err_msg=method)
            assert without_times(records) == without_times(here.records), method
            assert any(record["active"] for record in here.rounds)
            assert any("at_work" in record for record in here.rounds)
            assert [r["round"] for r in here.rounds if "probe" in r] == ([2, 3] if initial else [])
    finally:
        clients.close()
