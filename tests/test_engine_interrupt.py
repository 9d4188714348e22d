"""Ctrl-C: the run ends with what there is, and leaves no process behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--local-steps=4", "--trace=always"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def living(session: int) -> dict[int, str]:
    """Processes of a session that have not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:  # no process, or it ended meanwhile
            continue
        state, _, _, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            found[int(entry.name)] = name
    return found


def interrupted(run_dir: Path, engine: str, lines: int) -> tuple[int, str, str]:
    """Interrupt a run once there are so many lines of metrics; returns exit code and output."""
    call = [sys.executable, "sim.py", *SMALL, f"--engine={engine}", "--num-workers=1"]
    call += ["--num-rounds=1000000", f"--run-dir={run_dir}", "--json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(call, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not any(p.read_text().count("\n") >= lines for p in run_dir.glob("*/metrics.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to Ray's processes, too
        out, err = process.communicate(timeout=60)
    finally:
        deadline = time.monotonic() + (0 if process.poll() is None else 10)
        while (left := living(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}
    assert not re.search("traceback|warning|core_worker", err, re.IGNORECASE)  # nor noise of libraries
    return process.returncode, out, err


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_run_with_what_there_is(tmp_path: Path, engine: str) -> None:
    code, out, err = interrupted(tmp_path, engine, lines=4)
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    folder = Path(summary["run_dir"])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(summary["rounds"] + 1))
    assert summary["client_fits"] == 4 * summary["rounds"] > 0
    assert records[-1]["loss"] == summary["final"]["loss"]
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (folder / "weights.npz").exists()


@pytest.mark.slow
def test_ctrl_c_while_ray_starts(tmp_path: Path) -> None:
    code, _, err = interrupted(tmp_path, "ray", lines=0)
    assert (code, err.strip()) == (130, "sim.py: interrupted before the first round")
