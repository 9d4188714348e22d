"""A federation of real SuperNodes in which boards come, go, hang and pretend to be others."""

import time
from pathlib import Path
from typing import Any

import pytest
from federation import Federation
from test_results_page import described, keys_of

from clients import leave

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]


def test_no_device_stops_the_others(flower: dict[str, str], tmp_path: Path, free_ports: Any) -> None:
    """Client 0 has a copy, 1 is slow in round 3, 2 leaves, 3 hangs, 4 has a power cut, 5 comes later."""
    settings = {"strategy": "scheme-c", "model": "logistic", "num-clients": 6, "min-nodes": 5}
    settings |= {"local-steps": 8, "num-rounds": 7}
    federation = Federation(flower, tmp_path, free_ports)
    start = time.monotonic()
    few = federation.run("few", {**settings, "connect-timeout": 0.0})
    assert few.finished() == []
    assert "only 0 of num-clients=6 are connected after 0 s; 5 have to be (min-nodes)" in few.told()
    assert "let fewer begin with --run-config 'min-nodes=...'" in few.told()
    assert federation.status() == ["finished:failed"]

    busy = time.monotonic() - start  # how fast this machine starts processes now
    deadline = round(max(15.0, 2.5 * busy), 1)
    federation.node("0", client_id=0)
    federation.node("1", client_id=1, slow_in=3, slow=deadline / 6)
    federation.node("2", client_id=2, state_dir=str(tmp_path))
    federation.node("3", client_id=3, hang_from=3)
    federation.node("4", client_id=4, slow_in=3, slow=deadline)
    run = federation.run("runs", {**settings, "round-deadline": deadline})
    run.wait_for(1)
    federation.node("copy of 0", client_id=0)
    run.wait_for(2)
    time.sleep(2)
    federation.kill("4")
    federation.node("4 again", client_id=4)
    federation.node("5", client_id=5)
    run.wait_for(4)
    leave.main([str(tmp_path)])
    rounds = run.finished()
    assert len(rounds) == 7, run.told()

    first, second, third, *later = rounds
    assert first["selected"] == second["selected"] == [0, 1, 2, 3, 4]
    # Nobody did less than he could: the default trace is for simulations.
    assert {*first["steps"], *second["steps"]} <= {8, None}  # None is all of them, too
    assert first["incomplete"] == second["incomplete"] == 0
    assert {record["deadline_seconds"] for record in rounds} == {deadline}
    assert (
        max(record["seconds"]["train"] for record in rounds) < deadline + 5 + busy / 4
    )  # the grace, and polls

    slow = third["active"].index(1)
    assert 1 <= third["steps"][slow] < 8
    assert third["incomplete"] >= 1
    assert third["failed"].keys() == {"3", "4"}  # of 4, Flower may have noticed by then
    assert third["failed"]["3"].startswith("no reply within")
    assert all(3 in record["at_work"] and 3 not in record["selected"] for record in later)
    assert any(4 in record["active"] for record in later)
    events = {(event["event"], event["client"]) for record in rounds for event in record["events"]}
    events -= {("refused-node", 4)}  # unless Flower has noticed the power cut before it could say who it is
    assert events == {("refused-node", 0), ("arrival", 5), ("departure", 2)}
    assert 5 in rounds[-1]["active"]
    assert 2 in rounds[3]["selected"]
    assert 2 not in rounds[-1]["selected"]
    assert rounds[-1]["loss"] < 0.9 * first["loss"]
    assert federation.status().count("finished:completed") == 1

    # The page says what is written, but for nodes that do not say who they are.
    found = {key for record in rounds for key in keys_of(record)} - described("metrics.jsonl")
    found |= {f"unidentified-node.{key}" for key in ("node", "reason")}
    assert found == described("On devices")
