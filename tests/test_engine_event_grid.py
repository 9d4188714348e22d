"""Event time on devices, behind Flower's own Grid: with which replies a round ends."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns
from flwr.supercore.constant import TaskType
from grid_nodes import Federation, after, ask, eventually, trained, transport_in_event_time

from fedtide.base.contract import FitConfig
from fedtide.config import Settings
from fedtide.devices.connected import ConnectedClients
from fedtide.devices.flower_run import run_on_grid
from strategies import FlatParameters, Layout
from strategies.core.round import RoundInstructions


def clients_in(tasks: list[tuple[int, int, float]]) -> list[tuple[int, int]]:
    """The tasks of a record without their moments."""
    return [(client, task) for client, task, _ in tasks]


def test_replies_to_any_task_end_a_round(federation: Federation) -> None:
    late, later = threading.Event(), threading.Event()
    for client, work in enumerate((trained, after(late, steps=3), trained, after(later))):
        federation.node(client, work)
    nodes = transport_in_event_time(federation, 4, replies=2)
    results, failed = ask(nodes, 1, 0, 1, 2, 3)
    assert (results.keys(), failed) == ({0, 2}, {})
    assert nodes.at_work().tolist() == [1, 3]
    first = nodes.record()
    assert (first["round_ends"], first["begin"], first["idle"], first["deadline_seconds"]) == (2, 0, 0, 60)
    assert {*clients_in(first["replied"])} == {(0, 1), (2, 1)}
    assert first["virtual_seconds"] == max(moment for *_, moment in first["replied"])

    late.set()
    eventually(lambda: nodes.reachable().size and nodes._arrived)
    assert nodes.at_work().tolist() == [1, 3]  # until the reply is handed over
    results, _ = ask(nodes, 2, 0)
    assert [*results] == [1, 0]  # in the order of arrival: what waited counts first
    assert results[1].metrics.pop("seconds") > 0
    assert results[1].metrics == {"steps": 3, "round": 1}
    second = nodes.record()
    assert first["virtual_seconds"] < second["replied"][0][2] < second["begin"] < second["virtual_seconds"]
    assert (clients_in(second["replied"]), second["idle"]) == ([(1, 1), (0, 2)], 1)
    assert "round_ends" not in second

    later.set()  # fewer than two replies, but then nobody is at work any more
    assert ask(nodes, 3)[0].keys() == {3}
    assert nodes.at_work().size == 0


def test_more_replies_than_end_a_round_are_shared_out_by_their_moments(federation: Federation) -> None:
    for client in range(3):
        federation.node(client)
    nodes = transport_in_event_time(federation, 3, replies=1)
    ask(nodes, 1, 0, 1, 2)
    replied, ended = nodes.record()["replied"], [nodes.now]
    while nodes.at_work().size:
        ask(nodes, 1 + len(ended))
        replied += nodes.record()["replied"]
        ended.append(nodes.now)
    assert {*clients_in(replied)} == {(0, 1), (1, 1), (2, 1)}
    assert ended == sorted(ended)
    assert replied == sorted(replied, key=lambda task: (task[2], task[0]))


def test_nobody_waits_for_a_task_beyond_its_own_deadline(federation: Federation) -> None:
    late = threading.Event()
    federation.node(0, after(late))
    federation.node(1)
    nodes = transport_in_event_time(federation, 2, replies=1, seconds=0.5)
    trace = ConnectedClients(2, nodes, np.arange(2), max_absence=1, in_event_time=True)
    assert ask(nodes, 1, 0, 1)[0].keys() == {1}
    number, failed = 1, dict[str, str]()
    while not failed:
        number += 1
        assert trace.round(number).member.all()  # who is at work is not absent
        results, failed = ask(nodes, number, 1)
        assert results.keys() == {1}
    assert failed == {"0": "task of round 1: no reply by its deadline"}
    ((client, task, moment),) = nodes.record()["dropped"]
    assert (client, task) == (0, 1)
    assert moment > 0.7
    assert (nodes.at_work().size, nodes.reachable().tolist()) == (0, [1])
    for absent in (1, 2):
        member = trace.round(number + absent).member.tolist()
    assert member == [False, True]
    late.set()
    eventually(lambda: nodes.reachable().tolist() == [0, 1])
    assert ask(nodes, number + 3, 1)[0].keys() == {1}  # what came too late does not count
    assert ask(nodes, number + 4, 0)[0].keys() == {0}


def test_a_round_of_tasks_that_fail_is_over(federation: Federation) -> None:
    federation.node(0, lambda ins: 1 / 0)
    federation.node(1, federation.hang)
    nodes = transport_in_event_time(federation, 2, replies=2, seconds=0.3)
    results, failed = ask(nodes, 1, 0, 1)
    assert (results, failed["0"], failed["1"]) == ({}, "the client app raised", "no reply by its deadline")
    assert ask(nodes, 2, 0) == ({}, {"0": "the client app raised"})


def test_nobody_waits_for_who_has_left_the_objective(federation: Federation) -> None:
    federation.node(0, federation.hang)
    federation.node(1)
    nodes = transport_in_event_time(federation, 2, replies=1)
    ask(nodes, 1, 0, 1)
    weights = FlatParameters(np.zeros(2, np.float32), Layout(((2,),), np.dtype(np.float32)))
    config = FitConfig(round=2, learning_rate=0.1, batch_size=1, local_steps=1)
    instructions = RoundInstructions(FitIns, weights, (), config)
    instructions.withdrawn = ["0"]
    instructions.add(nodes.proxy(1), None)
    results, failures = nodes.fit(2, instructions, None)
    assert (results.names, failures) == (["1"], [])
    assert (nodes.record()["withdrawn"], nodes.at_work().size) == ([(0, 1)], 0)


def test_the_seconds_of_a_resumed_run_go_on(federation: Federation) -> None:
    federation.node(0)
    nodes = transport_in_event_time(federation, 1, replies=1)
    nodes.load_state_dict({"now": 1000.0})
    ask(nodes, 8, 0)
    assert 1000 <= nodes.record()["begin"] < nodes.state_dict()["now"] < 1060


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_replies": 0.5}, "min-replies and round-ends both"),
        ({"strategy": "mifa:max-lag=3,stop-late=true"}, "nothing stops the task of a device"),
    ],
)
def test_what_devices_cannot_do(federation: Federation, changes: dict[str, Any], words: str) -> None:
    federation.grid._run = replace(federation.grid.run, primary_task_type=TaskType.SERVER_APP)
    with pytest.raises(ValueError, match=words):
        run_on_grid(federation.grid, Settings(num_clients=2, round_ends=1, **changes))
