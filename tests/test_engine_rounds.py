"""What a round does, and what its record contains."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clients.gradients.flat import FlatModel
from clients.simulated.evaluation import evaluate, part_scores

NUM_WEIGHTS = 64 * 10 + 10  # of the logistic model on digits


def test_rounds_without_clients_leave_the_weights_bit_identical(simulate: Callable[..., Any]) -> None:
    """And the run continues when clients arrive."""
    run = simulate(trace="bernoulli:p=0")
    np.testing.assert_array_equal(run.weights, run.experiment.initial.vector)
    for record in run.rounds:
        assert (record["selected"], record["active"], record["failed"]) == ([], [], {})
        assert (record["bytes_down"], record["bytes_up"]) == (0, 0)
    *before, last = simulate(trace="always", arrivals="0-5=3", strategy="fedavg").records
    assert len({record["loss"] for record in before}) == 1
    assert last["active"] == [0, 1, 2, 3, 4, 5]
    assert last["loss"] != before[0]["loss"]


def test_participation_follows_the_trace(simulate: Callable[..., Any]) -> None:
    run = simulate(trace="pools:first=8", num_clients=30, num_rounds=4, seed=2)
    dropped = 0
    for record in run.rounds:
        now = run.experiment.trace.round(record["round"])
        assert record["selected"] == np.flatnonzero(now.online).tolist()
        assert record["active"] == np.flatnonzero(now.completion > 0).tolist()
        assert list(map(int, record["failed"])) == sorted(
            np.flatnonzero(now.completion == 0).tolist(), key=str
        )
        assert set(record["failed"].values()) <= {"dropped in mid-round"}
        share = now.completion[now.completion > 0].astype(float)
        assert record["steps"] == np.maximum(1, np.floor(share * 4 + 1e-4)).astype(int).tolist()
        dropped += len(record["failed"])
        assert record["bytes_down"] == 4 * NUM_WEIGHTS * len(record["selected"])
        assert record["bytes_up"] == 4 * NUM_WEIGHTS * len(record["active"])
    assert dropped


@pytest.mark.parametrize("objective", ["include", "exclude"])
def test_arrivals_and_departures_reach_the_strategy(simulate: Callable[..., Any], objective: str) -> None:
    run = simulate(
        trace="always",
        arrivals="5=2",
        departures="0=3",
        strategy="scheme-c",
        option=(f"departure={objective}",),
        evaluate_on="objective",
        train_loss=True,
    )
    first, second, third = run.rounds
    assert (first["events"], first["selected"]) == ([], [0, 1, 2, 3, 4])
    assert second["events"] == [{"event": "arrival", "client": 5}]
    assert second["selected"] == [0, 1, 2, 3, 4, 5]
    assert third["events"] == [{"event": "departure", "client": 0, "objective": objective}]
    assert third["selected"] == [1, 2, 3, 4, 5]
    # The objective consists of the members, and so do the test data.
    members = {1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3, 4, 5], 3: [1, 2, 3, 4, 5]}
    if objective == "include":
        members[3] = [0, *members[3]]
    assert np.flatnonzero(run.server.strategy.roster.member).tolist() == members[3]
    data, model = run.experiment.data, FlatModel(run.experiment.build_model())
    model.load(run.weights)
    loss, accuracy = evaluate(model, data.holdout(np.array(members[3])))
    assert (third["loss"], third["accuracy"]) == pytest.approx((loss, accuracy))
    train_loss, _ = evaluate(model, data.train_set(np.array(members[3])))
    assert third["train_loss"] == pytest.approx(train_loss)


@pytest.mark.parametrize(
    ("on", "tested"),
    [
        ("test", [None] * 4),
        ("present", [range(5), range(5), range(6), range(1, 6)]),
        ("objective", [range(5), range(5), range(6), range(6)]),
        ("everybody", [range(6)] * 4),
    ],
)
def test_records_tell_on_what_the_accuracy_was_tested(
    simulate: Callable[..., Any], on: str, tested: list[Any]
) -> None:
    """Client 5 arrives in round 2, and client 0, whose objective is kept, departs in round 3."""
    changes = {"arrivals": "5=2", "departures": "0=3", "option": ("departure=include",)}
    run = simulate(trace="always", strategy="fedavg", evaluate_on=on, **changes)
    data = run.experiment.data
    for record, clients in zip(run.records, tested, strict=True):
        x_labels = data.test if clients is None else data.holdout(np.array(clients))
        assert record["tested_examples"] == len(x_labels[1]) > 0
        assert record.get("tested_clients") == (None if clients is None else len(clients))


def test_evaluating_less_often_changes_nothing_else(simulate: Callable[..., Any]) -> None:
    weights = []
    for every, evaluated in ((1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])):
        run = simulate(trace="always", evaluate_every=every, num_rounds=5)
        assert [record["round"] for record in run.records if "loss" in record] == evaluated
        assert [server_round for server_round, _ in run.history.losses_centralized] == evaluated
        weights.append(run.weights.tobytes())
    assert len({*weights}) == 1


def test_how_long_devices_are_at_work(simulate: Callable[..., Any], write: Callable[..., str]) -> None:
    """4 steps take client 0 40 s and client 1 200 s; client 2, who has 8 s each, leaves after 20 s."""
    log = "client,start,end,steps_per_second\n0,0,900,0.1\n1,0,250,0.02\n2,0,20,0.125\n"
    given: dict[str, Any] = {"num_clients": 3, "strategy": "fedavg", "num_rounds": 3, "local_steps": 4}
    given |= {"trace": f"recorded:repeat=false,round-seconds=300,file={write(log, 'log.csv')}"}
    by_rounds = simulate(**given)
    assert [record.get("device_seconds") for record in by_rounds.rounds] == [260, 40, 40]
    events = simulate(**given, round_ends=1)
    assert [record["device_seconds"] for record in events.rounds] == [20, 40, 40]
    assert "device_seconds" not in simulate(trace="always").rounds[0]


def test_memory_at_the_clients_gives_the_same_result_as_at_the_server(simulate: Callable[..., Any]) -> None:
    """Over the real transport and clients, with lost replies, arrivals and departures."""
    trace = {"trace": "bernoulli:p=0.7+lost:p=0.2", "departures": "1=5", "arrivals": "5=3"}
    server, client = (
        simulate(**trace, num_rounds=8, strategy=f"mimic:memory={memory}") for memory in ("server", "client")
    )
    np.testing.assert_allclose(client.weights, server.weights, rtol=1e-5, atol=1e-6)
    farewells = [e for record in client.rounds for e in record["events"] if e["event"] == "farewell"]
    assert farewells
    assert all(event["received"] for event in farewells)
    assert [r["active"] for r in client.rounds] == [r["active"] for r in server.rounds]


def test_members_are_evaluated_on_their_own_examples(simulate: Callable[..., Any]) -> None:
    """Every second round and in the last one; client 5 arrives in round 3, client 0 departs."""
    played = simulate(
        trace="always", num_rounds=5, evaluate_clients=2, arrivals="5=3", departures="0=3", partition="iid"
    )
    shown = [record for record in played.rounds if "worst_client_accuracy" in record]
    assert [record["round"] for record in shown] == [2, 4, 5]
    evaluator, data = played.experiment.evaluator, played.experiment.data
    accuracies = part_scores(evaluator.model, [data.holdout(np.array([k])) for k in range(1, 6)]).means
    assert shown[-1]["worst_client_accuracy"] == accuracies.min()
    assert shown[-1]["tenth_percentile_accuracy"] == np.percentile(accuracies, 10)
    sizes = [len(data.holdout(np.array([k]))[1]) for k in range(1, 6)]
    assert min(sizes) > 1
    evaluator.settings = replace(evaluator.settings, evaluate_on="objective")
    _, told = evaluator(0, played.experiment.strategy.layout.split(played.weights), {})
    assert told["accuracy"] == pytest.approx(np.average(accuracies, weights=sizes))
