"""Fifty nodes that speak Flower's fleet protocol: every reply counts, and the run is replayed."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from test_devices import replay

from benchmarks.superlink import ManyNodes, add_options

NODES, ROUNDS = 50, 2
SETTINGS = (
    f"num-clients={NODES} num-rounds={ROUNDS} strategy='fedavg' model='logistic' local-steps=4 batch-size=0"
)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_fifty_nodes(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--client", "clients.app:app", "--poll", "1"])
    with ExitStack() as stack:
        there = ManyNodes(options, tmp_path, stack)
        there.superlink()
        there.fleet(NODES, "--patient")
        run = there.run(f"{SETTINGS} cohort='stacked' run-dir='{tmp_path / 'runs'}'")
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
