"""Clients behind Flower's own Grid: deadlines, late replies, and who speaks for which client."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException
from grid_nodes import Federation, after, ask, eventually, trained, transport

from fedtide.devices import grid as transports
from fedtide.devices import messages
from fedtide.devices import nodes as directory
from fedtide.devices.deadlines import RoundDeadlines
from fedtide.devices.grid import GridTransport
from fedtide.devices.identities import Identities
from fedtide.engine.transports.base import EngineLost

# Rounds


def test_a_round_ends_at_its_deadline_and_late_replies_come_in_a_later_one(federation: Federation) -> None:
    federation.node(0)
    federation.node(1, federation.hang)
    late = threading.Event()
    federation.node(2, after(late, steps=3))
    nodes = transport(federation, 3, seconds=3.0)
    results, failed = ask(nodes, 1, 0, 1, 2)
    assert (results.keys(), failed.keys()) == ({0}, {"1", "2"})
    assert failed["1"].startswith("no reply within")
    assert nodes.record()["deadline_seconds"] == 3.0
    assert nodes.at_work().tolist() == [1, 2]
    assert nodes.reachable().tolist() == [0, 1, 2]
    nodes.data_less = {1}
    assert nodes.reachable().tolist() == [0, 2]

    # Who is at work is not asked for an evaluation either.
    evaluation = [(nodes.proxy(k), EvaluateIns(ndarrays_to_parameters([]), {})) for k in (1, 2)]
    results, failures = nodes.evaluate(1, evaluation, None)
    assert {f.reason for f in failures} == {"still at work on its task of round 1"}

    late.set()
    eventually(lambda: nodes.reachable().size and nodes._arrived)
    assert nodes.at_work().tolist() == [1, 2]  # until the reply is handed over
    results, _ = ask(nodes, 2, 0)
    assert results[2].metrics.pop("seconds") > 3
    assert (results.keys(), results[2].metrics) == ({0, 2}, {"steps": 3, "round": 1})
    assert nodes.at_work().tolist() == [1]
    assert ask(nodes, 3, 0, 2)[0].keys() == {0, 2}


def test_an_answer_that_is_still_being_sent_holds_nobody_up(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BATCH", 1)
    federation.node(0)
    federation.node(1)
    nodes, sent, pull = (
        transport(federation, 2, seconds=0.5),
        threading.Event(),
        federation.grid.pull_messages,
    )
    first: list[str] = []

    def pull_messages(names: list[str]) -> Any:
        first[:] = first or names
        if names == first:
            sent.wait()
        return pull(names)

    nodes.reachable()
    eventually(lambda: nodes.reachable().size == 2)
    monkeypatch.setattr(federation.grid, "pull_messages", pull_messages)
    results, failed = ask(nodes, 1, 0, 1)
    assert (results.keys(), failed.keys()) == ({1}, {"0"})
    sent.set()
    eventually(lambda: ask(nodes, 2)[0].keys() == {0})


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://superlink")
    return httpx.HTTPStatusError(f"code {status}", request=request, response=httpx.Response(status))


@pytest.mark.parametrize("call", ["get_nodes", "push_messages", "pull_messages"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (refusal(401), "has given this run up"),
        (refusal(500), "has failed: code 500"),  # as when its database is locked
        (ObjectPushError("a", 1, "b"), "has given this run up"),  # stopped between a message and its content
        (RunNotRunningException(), "has given this run up"),
    ],
)
def test_a_call_that_the_superlink_refuses_ends_the_run_in_a_line(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException, reason: str
) -> None:
    federation.node(0)
    nodes = transport(federation, 1)

    def refuse(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(federation.grid, call, refuse)
    with pytest.raises(EngineLost, match=reason):  # noqa: PT012 - whichever call comes first
        nodes.reachable()
        ask(nodes, 1, 0)


def test_a_share_of_the_replies_ends_a_round(federation: Federation) -> None:
    for client in range(3):
        federation.node(client)
    federation.node(3, federation.hang)
    results, failed = ask(transport(federation, min_replies=0.6), 1, 0, 1, 2, 3)
    assert (results.keys(), failed.keys()) == ({0, 1, 2}, {"3"})


def test_clients_learn_their_own_deadline_and_whether_to_replay(federation: Federation) -> None:
    node = federation.node(0, lambda ins: trained(ins, seconds=0.0))
    nodes = transport(federation, 1, replay=False)
    for server_round in (1, 2, 3):
        ask(nodes, server_round, 0)
    assert 0 < federation.seen[node][-1].config["deadline-seconds"] < 60  # some time passes outside its work
    assert not any("replay" in ins.config for ins in federation.seen[node])

    replaying = GridTransport(federation.grid, 1)  # as in a simulation: no deadline, no clock
    replaying.connect(np.arange(1), 60.0, 1)
    ask(replaying, 4, 0)
    assert federation.seen[node][-1].config == {"round": 4, "replay": True}
    assert replaying.record() == {}
    replaying.resumed = "17"
    ask(replaying, 5, 0)
    assert federation.seen[node][-1].config["run"] == "17"


def test_a_deadline_that_nobody_has_set() -> None:
    deadlines = RoundDeadlines()
    assert deadlines.of([0, 1]) == 60
    deadlines.meet(0, 7.0)
    assert (deadlines.of([0]), deadlines.of_work(0, 60.0), deadlines.of_work(0, 10.0)) == (70, 53, 5)
    for taken in (10.0, 12.0, 500.0, 11.0, 12.0):  # one round hung
        deadlines.learn(0, taken, 2.0 if taken == 500 else taken - 3)
    assert deadlines.of_work(0, 60.0) == 57
    assert (deadlines.of([0, 1]), deadlines.of([1])) == (115, 60)
    assert deadlines.of_work(0, 2.0) == 0.0  # one step, in any case
    assert RoundDeadlines(20.0).of([0]) == 20


def test_rounds_do_not_pass_while_all_are_at_work(federation: Federation) -> None:
    late = threading.Event()
    federation.node(0, after(late))
    nodes = transport(federation, 1, seconds=0.3)
    assert ask(nodes, 1, 0)[0] == {}
    assert ask(nodes, 2)[0] == {}
    late.set()
    eventually(lambda: 0 in ask(nodes, 3)[0])
    assert nodes.at_work().size == 0


def test_who_fails_or_has_gone_is_named(federation: Federation) -> None:
    def vanish(ins: FitIns) -> None:
        federation.stop(vanishing)
        federation.hang(ins)

    federation.node(0, lambda ins: 1 / 0)
    vanishing, deleted = federation.node(1, vanish), federation.node(2)
    nodes = transport(federation, 3)
    federation.state.delete_node("", deleted)
    results, failed = ask(nodes, 1, 0, 1, 2)
    assert results == {}
    assert failed["0"] == "the client app raised"
    assert "Node Unavailable" in failed["1"]
    assert failed["2"] == "its node has gone"
    assert nodes.at_work().size == 0


def test_a_node_that_was_started_anew_owes_no_reply(federation: Federation) -> None:
    node = federation.node(0, federation.hang, key=b"k" * 32, name="pi-0")
    nodes = transport(federation, 1, seconds=0.2)
    ask(nodes, 1, 0)
    assert nodes.at_work().tolist() == [0]
    federation.stop(node)
    federation.again(node)
    assert nodes.reachable().tolist() == [0]
    assert nodes.at_work().size == 0
    assert ask(nodes, 2)[1] == {"0": "task of round 1: its node was restarted"}


# Who speaks for whom


def test_the_first_of_two_nodes_with_one_client_id_stays(federation: Federation) -> None:
    first = federation.node(1)
    nodes = transport(federation, 2)
    second = federation.node(1)
    eventually(lambda: nodes.reachable().size and nodes.nodes.events)
    refused = {"event": "refused-node", "client": 1, "node": str(second)}
    reason = f"client 1 is there already, as node {first}"
    assert nodes.record()["events"] == [{**refused, "reason": reason}]
    ask(nodes, 1, 1)
    assert (len(federation.seen[first]), len(federation.seen[second])) == (1, 0)
    assert nodes.record()["events"] == []  # said once
    federation.stop(first)
    assert nodes.reachable().tolist() == [1]  # the second takes over: that is a restart
    ask(nodes, 2, 1)
    assert (len(federation.seen[first]), len(federation.seen[second])) == (1, 1)
    federation.again(first)
    nodes.reachable()
    assert nodes.nodes.of_client == {1: second}


def test_a_client_stays_bound_to_the_name_of_its_key(federation: Federation) -> None:
    """The board comes back with the same key, or with another one that was registered in its place."""
    first = federation.node(1, key=b"a" * 32, name="pi-1")
    nodes = transport(federation, 2)
    federation.stop(first)
    federation.node(1, key=b"b" * 32, name="copy")
    eventually(lambda: nodes.reachable().size == 0 and nodes.nodes.events)
    (event,) = nodes.record()["events"]
    assert (event["reason"], event["node"]) == ("client 1 is registered as pi-1", "copy")
    federation.again(first)
    assert nodes.reachable().tolist() == [1]
    federation.stop(first)
    replaced = federation.node(1, key=b"c" * 32, name="pi-1")
    eventually(lambda: nodes.reachable().tolist() == [1])
    assert nodes.nodes.of_client == {1: replaced}


def test_a_late_reply_counts_for_the_client_that_its_board_was(federation: Federation) -> None:
    """Its operator has set another client-id since the task was sent."""
    node = federation.node(1)
    nodes = transport(federation, 3)
    assert nodes.reachable().tolist() == [1]
    nodes.nodes.answer(node, 2, True, 0.0)
    assert nodes.nodes.of_client == {2: node}
    assert nodes.proxy(1).cid == "1"
    nodes.nodes.leave(1)  # nor does it leave for the other one
    assert nodes.nodes.clients() == {2}


def test_a_node_that_does_not_say_who_it_is_holds_nobody_up(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def silent() -> int:
        asked.append(True)
        federation._stop.wait(1.0)
        raise ZeroDivisionError

    federation.node(0)
    for module in (directory, transports):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
    nodes = GridTransport(federation.grid, 2, RoundDeadlines(60.0))
    silent_node = federation.node(silent)
    federation.node(7)
    assert nodes.connect(np.arange(2), 60.0, 1).tolist() == [0]
    events: list[dict[str, Any]] = []
    rounds = 0
    while len(asked) < 2 or len(events) < 2:
        rounds += 1
        nodes.reachable()
        assert ask(nodes, rounds, 0)[0].keys() == {0}
        events += nodes.record()["events"]
    assert len(asked) < rounds  # it is not asked again and again
    told = {event["node"]: event["reason"] for event in events}
    assert len(events) == len(told) == 2  # each once
    assert told.pop(str(silent_node)).startswith(("no answer within", "Error", "the client app"))
    assert [*told.values()] == ["its client-id is 7, not one of 0..1"]


def test_nodes_are_asked_once_for_as_long_as_they_are_up(
    federation: Federation, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    asked: list[int] = []

    def says(client: int) -> Callable[[], int]:
        return lambda: asked.append(client) or client

    def next_run(app: str = "app", folder: Path = tmp_path / "runs") -> list[int]:
        """Return who was asked in a run of one round."""
        asked.clear()
        nodes = transport(federation, 3, earlier=Identities(folder, app))
        assert ask(nodes, 1, 0, 1, 2)[0].keys() == {0, 1, 2}
        nodes.record()
        return sorted(asked)

    first, _, _ = (federation.node(says(k)) for k in range(3))
    assert next_run() == [0, 1, 2]
    assert next_run() == []
    federation.stop(first)
    federation.again(first)
    assert next_run() == [0]
    assert next_run("another") == [0, 1, 2]
    for nodes in ("", "[[1, 2]]", '[["1", "", 0, true, NaN]]', '[[[], "", 0, true, 0]]', "{"):
        (tmp_path / "runs" / "nodes.json").write_text(f'{{"app": "app", "nodes": {nodes}}}')
        assert next_run() == [0, 1, 2]
    assert not recwarn
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="the next run asks all nodes again"):
        next_run(folder=tmp_path / "file")
