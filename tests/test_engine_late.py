"""Late replies in the engine: who is at work, what arrives when, and what the record says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.server.strategy import FedAvg

from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.engine.transports.late import LATE
from fedtide.federation import Federation
from fedtide.plan import Plan

RUN: dict[str, Any] = {"trace": "bernoulli:p=0.8+late:p=0.4,rounds=3", "num_clients": 12, "num_rounds": 12}


def arrivals(settings: Settings) -> dict[int, dict[int, int]]:
    """By round, who is at work and since when: from the definition, with every available client asked."""
    trace, until, since = Federation.of(settings).trace, dict[int, int](), dict[int, int]()
    working: dict[int, dict[int, int]] = {}
    for t in range(1, settings.num_rounds + 2):
        working[t] = {k: since[k] for k in since if until[k] >= t}
        late = trace.delay(t)
        for k in np.flatnonzero(trace.round(t).online).tolist():
            if k not in working[t] and late[k] and not trace.lost(t)[k]:
                since[k], until[k] = t, t + int(late[k])
    return working


def test_clients_are_at_work_until_their_reply_arrives(simulate: Callable[..., Any]) -> None:
    played = simulate(**RUN, strategy="fedbuff:buffer=1")
    working = arrivals(played.experiment.settings)
    for t, record in enumerate(played.rounds, start=1):
        assert record.get("at_work", []) == sorted(working[t])
        assert not set(record["selected"]) & set(working[t])
        assert record["offline"] + len(record["selected"]) + len(working[t]) == 12
        arrive = {k: task for k, task in working[t].items() if k not in working[t + 1]}
        assert {entry["client"]: entry["task"] for entry in record.get("late", [])} == arrive
        late = {k for k, reason in record["failed"].items() if reason == LATE}
        assert late == {str(k) for k, task in working[t + 1].items() if task == t}
        assert set(record["active"]) == {int(k) for k in record["selected"] if str(k) not in late} | {
            entry["client"] for entry in record.get("late", [])
        }
    assert sum(len(record.get("late", [])) for record in played.rounds) > 10


def test_late_updates_are_those_of_their_task(simulate: Callable[..., Any]) -> None:
    """All replies are a round late: what they change is what they would have changed on time."""
    late = simulate(
        trace="late:p=1,rounds=1", strategy="fedbuff:buffer=1,staleness=0,weights=n", num_rounds=8
    )
    assert [record["selected"] for record in late.rounds] == [list(range(6)), []] * 4
    assert [len(record["active"]) for record in late.rounds] == [0, 6] * 4
    first = simulate(trace="always", strategy="fedavg", num_rounds=1)
    second = simulate(trace="late:p=1,rounds=1", strategy="fedbuff:buffer=1,weights=n", num_rounds=2)
    np.testing.assert_allclose(second.weights, first.weights, rtol=1e-6, atol=1e-9)


def test_dropped_replies_are_named(simulate: Callable[..., Any]) -> None:
    played = simulate(**RUN, strategy="scheme-c")
    reasons = [reason for record in played.rounds for reason in record["failed"].values()]
    assert any("late reply of round 1:" in reason and "takes none" in reason for reason in reasons)
    assert not any("late" in record for record in played.rounds)
    lost = simulate(trace="always+late:p=1+lost:p=1", strategy="fedbuff")
    assert all(record["selected"] == list(range(6)) for record in lost.rounds)  # nobody is waited for
    assert not any("at_work" in record for record in lost.rounds)


@pytest.mark.parametrize(("departure", "counts"), [("include", True), ("exclude", False)])
def test_a_client_departs_while_at_work(simulate: Callable[..., Any], departure: str, counts: bool) -> None:
    played = simulate(
        trace="late:p=1,rounds=1",
        strategy=f"mifa:departure={departure}",
        departures="2=2",
    )
    _, second, _ = played.rounds
    assert second["active"] == ([0, 1, 2, 3, 4, 5] if counts else [0, 1, 3, 4, 5])
    assert second["failed"] == ({} if counts else {"2": "was not asked in this round"})


def test_strategies_of_flower_get_no_late_replies(simulate: Callable[..., Any]) -> None:
    def stock(experiment: Any) -> FedAvg:
        return FedAvg(fraction_evaluate=0.0, initial_parameters=experiment.initial)

    played = simulate(**RUN, stock=stock)
    reasons = {reason for record in played.rounds for reason in record["failed"].values()}
    assert reasons == {LATE, "late reply: strategies of Flower take none"}


def test_the_virtual_clock_has_late_replies(simulate: Callable[..., Any], write: Callable[..., str]) -> None:
    """Client k needs 50 (k + 1) s for its 4 steps; a round takes 100 s."""
    rows = [f"{k},0,100000,{4 / (50 * (k + 1))}" for k in range(6)]
    log = write("client,start,end,steps_per_second\n" + "\n".join(rows) + "\n", "log.csv")
    played = simulate(
        trace=f"recorded:file={log},round-seconds=100,late=true", strategy="fedawe", num_rounds=6
    )
    assert [record["active"] for record in played.rounds[:3]] == [[0, 1], [0, 1, 2, 3], [0, 1, 4, 5]]
    assert played.rounds[2]["late"] == [
        {"client": 4, "task": 1, "lag": 2},
        {"client": 5, "task": 1, "lag": 2},
    ]


def test_a_method_without_replies_refuses_late_ones() -> None:
    with pytest.raises(ValueError, match="sequential-sgd has no use for late replies"):
        prepare(Plan.of(Settings(trace="always+late:p=0.1", strategy="sequential-sgd")))
