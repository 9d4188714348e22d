"""Real SuperNodes with TLS and keys, five and fifty: they come, go, hang, are slow, or are strangers."""

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from federation import Federation
from flower import outcome
from test_run_folder_page import described, keys_of
from waiting import wait_until

import sim
from benchmarks.superlink import ManyNodes, add_options
from clients.device import leave
from fedtide.config import Settings
from fedtide.plan import Plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

STEPS = 8
PATIENT = 600.0  # seconds: however busy the machine is, all reply in time, or their node is seen to be dead
DEADLINE = 8.0  # of rounds after a resume, in one of which a client hangs and another is slow
SETTINGS = {"strategy": "fedlaavg:memory=client", "model": "logistic", "num-clients": 5, "min-nodes": 4}
SETTINGS |= {"local-steps": STEPS, "num-rounds": 99, "batch-size": 0, "round-deadline": PATIENT}
SETTINGS |= {"checkpoint-every": 1, "cohort": "stacked"}  # not compiled for each app
# Of a second run on the same devices, in which two replies end a round.
IN_EVENT_TIME = SETTINGS | {"strategy": "fedasync", "round-ends": 2, "round-deadline": DEADLINE}
IN_EVENT_TIME |= {"min-nodes": 5, "num-rounds": 999, "connect-timeout": 400.0}
Records = list[dict[str, Any]]


def test_five_devices(flower: dict[str, str], tmp_path: Path) -> None:
    """Until all has happened that is to happen, also to the SuperLink; then the records are replayed."""
    federation = Federation(flower, tmp_path)
    federation.resident()
    federation.admit(*"01234", "copy")
    data = Plan.of(Settings(num_clients=5)).data
    state = [tmp_path / f"state-{k}" for k in range(5)]
    for client, folder in enumerate(state):
        folder.mkdir()
        x, y = data.train_set(np.array([client]))
        np.savez(folder / "data.npz", x=x, y=y)

    def start_node(client: int, name: str = "", **faults: Any) -> None:
        here = {"state_dir": str(state[client]), "data": str(state[client] / "data.npz")}
        here["marks"] = str(federation.marks)
        federation.node(name or str(client), client_id=client, **here, **faults)

    start_node(0, lose_from=2)
    start_node(1, nan_in=2)
    start_node(2, report=True)
    start_node(3)
    federation.run(SETTINGS)
    comings_and_goings(federation, start_node)
    before = the_superlink_dies(federation, state[1])
    records = the_run_resumes(federation, before)
    check(records)
    replay(federation.path, tmp_path / "replay", records)
    assert leave.main([str(state[1]), "--undo"]) == 0  # it has left for good, not for one run
    in_event_time = rounds_end_with_two_replies(federation)
    check(in_event_time)
    replay(federation.path, tmp_path / "replay-in-event-time", in_event_time)
    # The page says what is written, but for nodes that do not say who they are.
    keys = {key for record in records + in_event_time for key in keys_of(record)}
    nameless = {f"unidentified-node.{key}" for key in ("node", "reason")}
    assert (keys - described("metrics.jsonl")) | nameless == described("On devices")
    for name, reason in STRANGERS.items():
        assert reason in (tmp_path / f"{name}.log").read_text(), name
        assert "SuperNode ID" not in (tmp_path / f"{name}.log").read_text(), name


STRANGERS = {
    "stranger": "[code: 2004] Failed to activate SuperNode",
    "plain": "Connection attempt failed",
}


def strangers(federation: Federation) -> None:
    """Start nodes that may not take part: with an unregistered key, and without TLS."""
    federation.deploy("key.sh", str(federation.keys / "stranger"))
    federation.node("stranger", again=False, client_id=4)
    federation.node("plain", secure=False, key=False, again=False, client_id=4)


def comings_and_goings(federation: Federation, start_node: Callable[..., None]) -> None:
    """Client 0 loses a reply and has a copy, 1 sends NaN, 2 has a power cut while it works, 4 comes."""
    (federation.marks / "hang-2-3").touch()
    federation.wait_until(lambda _: (federation.marks / "hangs-2").exists())
    federation.kill("2")
    start_node(0, "copy")
    start_node(4)
    strangers(federation)
    federation.wait_until(lambda records: len(records) >= 3)  # its key is refused until Flower has noticed
    start_node(2)

    def all_back(records: Records) -> bool:
        active = {client for record in records[3:] for client in record["active"]}
        return {2, 4} <= active and ("refused-node", 0) in events(records)

    first, second, third, *_ = records = federation.wait_until(all_back)
    assert first["active"] == first["members"] == [0, 1, 2, 3]
    assert first["steps"] == [STEPS] * 4
    assert second["failed"].keys() == {"0", "1"}
    assert "reply lost" in second["failed"]["0"]
    assert second["failed"]["1"] == "weights are not finite"
    assert third["failed"].keys() == {"2"}
    assert third["steps"] == [STEPS] * 3
    (reason,) = (e["reason"] for r in records for e in r["events"] if e.get("node") == "copy")
    assert reason.startswith("client 0 is registered as ")


def the_superlink_dies(federation: Federation, leaving: Path) -> Records:
    """Client 1 leaves before; return the records of the run, which ends in order."""
    for name in ("copy", "plain"):
        federation.kill(name)
    leave.main([str(leaving)])
    federation.wait_until(lambda records: ("farewell", 1) in events(records))
    federation.kill("superlink")
    records = federation.ended()
    summary = json.loads((federation.path / "summary.json").read_text())
    # Whichever of the two is seen first.
    assert summary["interrupted"] or "the SuperLink has failed" in summary["failed"]
    assert summary["rounds"] == len(records)
    assert {record.get("deadline_seconds", PATIENT) for record in records} == {PATIENT}
    return records


def the_run_resumes(federation: Federation, before: Records) -> Records:
    """With the SuperLink and a deadline, for which client 2 is too slow; 3 hangs, and replies later.

    A user stops it. The memories of all clients still fit.
    """
    (federation.marks / "hang-3").touch()
    (federation.marks / "slow-2").write_text(str(DEADLINE / 6))
    federation.superlink()
    federation.run(SETTINGS | {"resume": str(federation.path), "round-deadline": DEADLINE})

    def late(records: Records) -> bool:
        return any(3 in record["at_work"] for record in records[len(before) :] if "at_work" in record)

    federation.wait_until(late)
    (federation.marks / "hang-3").unlink()
    (federation.marks / "slow-2").unlink()
    federation.wait_until(lambda records: {2, 3} <= {*records[-1]["active"]})
    federation.hang(0, 2, 3, 4)
    federation.stop()
    (federation.marks / "hang").unlink()
    records = federation.ended()
    assert [r["active"] for r in records[: len(before)]] == [r["active"] for r in before]
    resumed = records[len(before) :]
    assert {record.get("deadline_seconds", DEADLINE) for record in resumed} == {DEADLINE}
    assert any(r["failed"].get("3", "").startswith("no reply within") for r in resumed)
    # On a busy machine its reply may come after the round, and count later.
    steps = [s for r in resumed for k, s in zip(r["active"], r["steps"], strict=True) if k == 2]
    assert 1 <= min(steps) < STEPS
    # Its node is still there. If it connects again later than the others, it is back, and leaves once more.
    back = False
    for record in resumed:
        back |= ("arrival", 1) in events([record])
        assert back or 1 not in record["selected"]
        back &= ("farewell", 1) not in events([record])
    assert not back
    assert not any("resync" in str(record) for record in records)
    assert records[-1]["loss"] < records[0]["loss"]
    ends = ["finished:stopped", "finished:failed"]  # the SuperLink finds out later that the first is dead
    wait_until(lambda: federation.statuses() == ends)
    until_flower_notices = {("refused-node", 2), ("unidentified-node", None)}
    found = events(records) - until_flower_notices - {("arrival", 1)}
    assert found == {("refused-node", 0), ("arrival", 4), ("departure", 1), ("farewell", 1)}
    return records


def rounds_end_with_two_replies(federation: Federation) -> Records:
    """Another run, in whose first round all are asked: client 2 is slow, and 3 hangs; a user stops it."""
    (federation.marks / "hang-3-1").touch()
    (federation.marks / "slow-2").write_text(str(DEADLINE / 4))
    federation.runs = federation.folder / "runs-in-event-time"
    federation.run(IN_EVENT_TIME)

    def ended(records: Records, *kinds: str) -> dict[tuple[int, int], float]:
        tasks = [task for record in records for kind in kinds for task in record[kind]]
        moments = {(client, task): moment for client, task, moment in tasks}
        assert len(moments) == len(tasks)  # each task ends once
        return moments

    federation.wait_until(lambda records: {(2, 1), (3, 1)} <= ended(records, "replied", "dropped").keys())
    federation.stop()
    records = federation.ended()
    (missed,) = (record for record in records if "3" in record["failed"])
    of_round = "task of round 1: " if missed["round"] > 1 else ""
    assert missed["failed"]["3"] == f"{of_round}no reply by its deadline"
    moments = ended(records, "replied", "dropped")
    assert DEADLINE + 5 < moments[3, 1] >= moments[2, 1]
    assert {record.get("deadline_seconds", DEADLINE) for record in records} == {DEADLINE}
    # On a busy machine the reply of the slow one may come after its deadline.
    assert any(record["incomplete"] for record in records) or (2, 1) in ended(records, "dropped")
    for before, record in pairwise(records):
        assert before["virtual_seconds"] <= record["begin"] <= record["virtual_seconds"]
    at_work: set[int] = set()
    for record in records:
        ends = {client for key in ("replied", "dropped", "withdrawn") for client, *_ in record[key]}
        at_work = (at_work | {*record["selected"]}) - ends - {*map(int, record["failed"])}
        # On a machine that slow, all tasks may pass their deadline: then nobody is waited for any more.
        assert len(record["replied"]) >= 2 or not at_work
    return records


def events(records: Records) -> set[tuple[str, Any]]:
    return {(event["event"], event.get("client")) for record in records for event in record["events"]}


def check(records: Records) -> None:
    """What holds after every round."""
    for number, record in enumerate(records, 1):
        assert record["round"] == number
        selected, active, failed = (set(record[key]) for key in ("selected", "active", "failed"))
        failed = {int(client) for client in failed}
        late = {entry["client"] for entry in record.get("late", ())}
        at_work = set(record.get("at_work", ()))
        # Who leaves is asked once more, for what it remembers.
        leaving = {event["client"] for event in record["events"] if event["event"] == "farewell"}
        assert selected - leaving <= set(record["available"])
        assert not selected & at_work
        assert not active & failed
        assert active - late <= selected
        if "replied" not in record:  # in event time, others are still at work
            assert selected <= active | failed | leaving
        assert all(1 <= (steps or STEPS) <= STEPS for steps in record["steps"])
        assert record["planned"] == [STEPS] * len(active)
        assert np.isfinite(record["loss"])


def replay(path: Path, runs: Path, records: Records) -> None:
    """The simulation of what has happened comes to the same weights."""
    trace = f"run:file={path / 'metrics.jsonl'}"
    flags = ["--config", str(path / "config.toml"), "--trace", trace, "--num-rounds", str(len(records))]
    assert sim.main([*flags, "--run-dir", str(runs), "--engine", "inline", "--client-gpus", "0"]) == 0
    replayed, weights = outcome(runs)
    told = ("arrival", "departure", "farewell")
    for there, here in zip(records, replayed, strict=True):
        for key in ("round", "selected", "active", "incomplete", "learning_rate"):
            assert there[key] == here[key], (key, there["round"])
        assert there.get("virtual_seconds") in (None, here["virtual_seconds"])
        assert [s or STEPS for s in there["steps"]] == here["steps"]
        assert here["events"] == [e for e in there["events"] if e["event"] in told]
    with np.load(path / "weights.npz") as arrays:
        expected = np.concatenate([arrays[name].ravel() for name in arrays.files])
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)


# Fifty nodes that speak Flower's fleet protocol: every reply counts, and the run is replayed


NODES, ROUNDS = 50, 2
OF_MANY = f"num-clients={NODES} num-rounds={ROUNDS} strategy='fedavg' local-steps=4 batch-size=0"


@pytest.mark.xdist_group("flower")
def test_fifty_nodes(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--client", "clients.app:app", "--poll", "1"])
    with ExitStack() as stack:
        there = ManyNodes(options, tmp_path, stack)
        there.superlink()
        there.fleet(NODES, "--patient")
        run = there.run(f"{OF_MANY} model='logistic' cohort='stacked' run-dir='{tmp_path / 'runs'}'")
        run.wait(1000)
        unsigned = httpx.post(
            f"http://127.0.0.1:{there.port}/v1/fleet/pull-messages",
            headers={"content-type": "application/protobuf"},
            timeout=60,
        )
        told, records = there.told(), there.records()
    assert unsigned.status_code == 401, unsigned.text  # a layer that is not gone around
    assert records is not None, (tmp_path / "run.log").read_text()
    assert [record["active"] for record in records] == [[*range(NODES)]] * ROUNDS
    assert len(told["usable"]) == NODES * ROUNDS
    assert told["objects"] == {"task": 3, "reply": 3}
    (path,) = (tmp_path / "runs").glob("*/")
    replay(path, tmp_path / "replay", records)
