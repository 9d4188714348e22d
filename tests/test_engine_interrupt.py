"""Ctrl-C: the run ends early with the results so far, and leaves no process behind."""

import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import saved_rounds
from rich.console import Console
from waiting import PATIENCE, wait_until

import sim
from fedtide.comparison import compare
from fedtide.config import Settings
from fedtide.engine.evaluation import GlobalEvaluator
from fedtide.engine.experiment import prepare
from fedtide.engine.interrupts import stopping_at_once, stopping_on_interrupt
from fedtide.engine.run import drive, virtual_transport
from fedtide.engine.run_folder import RunFolder
from fedtide.engine.server import RoundServer
from fedtide.plan import Plan
from fedtide.report import make

ROOT = Path(__file__).parents[1]
SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--local-steps=4", "--trace=always"]
# What Ray's C++ part says where its raylet ends before this process: it has no level for the driver alone.
OF_RAY = re.compile(
    r"^\[.*core_worker.*Attempting to recover \d+ lost objects by resubmitting their tasks.*\n", re.M
)
SETTINGS = {"model": "logistic", "num_clients": 4, "engine": "inline", "client_gpus": 0.0, "trace": "always"}

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def running(session: int) -> dict[int, str]:
    """Return the processes of a session that have not ended, by ID."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:  # not a process, or it has ended
            continue
        state, _, _, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            found[int(entry.name)] = name
    return found


def interrupted(
    run_dir: Path, lines: int, *flags: str, number: signal.Signals = signal.SIGINT
) -> tuple[int, str, str]:
    """Interrupt a run on Ray after so many lines of metrics; return the exit code and the output."""
    call = [sys.executable, "sim.py", *SMALL, "--engine=ray", "--num-workers=1"]
    call += ["--num-rounds=1000000", f"--run-dir={run_dir}", "--json", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(call, cwd=ROOT, text=True, start_new_session=True, **pipes)
    try:
        wait_until(
            lambda: any(p.read_text().count("\n") >= lines for p in run_dir.rglob("metrics.jsonl")), process
        )
        os.killpg(process.pid, number)  # like a terminal, which also interrupts Ray's processes
        out, err = process.communicate(timeout=PATIENCE)
        wait_until(lambda: not running(process.pid))
    finally:
        for pid in running(process.pid):
            os.kill(pid, signal.SIGKILL)
    if number is signal.SIGTERM:
        err = OF_RAY.sub("", err)
    assert not re.search("traceback|warning|core_worker", err, re.IGNORECASE), err
    return process.returncode, out, err


def check_results(shown: str, err: str, number: signal.Signals) -> None:
    """Check that a run folder has the results up to the round that a signal ended."""
    summary = json.loads(shown.splitlines()[-1])
    assert (summary["interrupted"], summary["signal"]) == (True, number.name)
    folder = Path(summary["run_dir"])
    assert f"--resume {folder} continues" in err
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(summary["rounds"] + 1))
    assert summary["client_fits"] == 4 * summary["rounds"] > 0
    assert records[-1]["loss"] == summary["final"]["loss"]
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (folder / "weights.npz").exists()
    assert saved_rounds(folder)[-1] == summary["rounds"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_run_with_the_results_so_far(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    evaluate, before = GlobalEvaluator.__call__, signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def interrupt(self: Any, server_round: int, *rest: Any) -> Any:
        if server_round == 3:
            signal.raise_signal(number)
        return evaluate(self, server_round, *rest)

    monkeypatch.setattr(GlobalEvaluator, "__call__", interrupt)
    flags = [*SMALL, "--engine=inline", "--num-rounds=1000000", f"--run-dir={tmp_path}", "--json"]
    assert sim.main(flags) == 128 + number
    signal.signal(signal.SIGHUP, before)  # nohup, for one, has it ignored
    check_results(*capsys.readouterr(), number)


@pytest.mark.parametrize(
    ("where", "rounds"),
    [("checkpoints.checkpointing.Checkpointing.resume", 0), ("run_folder.RunFolder.try_to_write_weights", 2)],
)
def test_a_signal_before_the_first_round_or_after_the_last(
    where: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """What is to be written is written."""
    owner, name = pkgutil.resolve_name(f"fedtide.engine.{where.rpartition('.')[0]}"), where.split(".")[-1]
    call = getattr(owner, name)

    def interrupt(self: Any, *rest: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return call(self, *rest)

    monkeypatch.setattr(owner, name, interrupt)
    flags = [*SMALL, "--engine=inline", "--num-rounds=2", f"--run-dir={tmp_path}", "--json"]
    assert sim.main(flags) == 128 + signal.SIGTERM
    summary = json.loads(capsys.readouterr().out)
    folder = Path(summary["run_dir"])
    assert (summary["rounds"], summary["interrupted"]) == (rounds, not rounds)
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (folder / "weights.npz").exists()
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(("last", "flags"), [(2, ["--num-rounds=2"]), (0, ["--stop-at=accuracy=0"])])
def test_a_signal_in_the_last_round_leaves_a_finished_run(
    last: int, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It has cut off nothing: there is nothing to continue."""
    write = RunFolder.round

    def interrupt(self: RunFolder, record: dict[str, Any]) -> None:
        write(self, record)
        if record["round"] == last:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(RunFolder, "round", interrupt)
    call = [*SMALL, "--engine=inline", *flags, f"--run-dir={tmp_path}", "--json", "--no-report"]
    assert sim.main(call) == 128 + signal.SIGTERM
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["rounds"], summary["interrupted"], "signal" in summary) == (last, False, False)
    assert ("stopped" in summary) == (last == 0)
    assert "--resume" not in err


def test_signals_while_a_comparison_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its tables are, at the first signal, and its page is left out at the second."""
    write = compare._write

    def interrupt(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        write(*arguments)

    monkeypatch.setattr(compare, "_write", interrupt)
    monkeypatch.setattr(make, "write_page", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    flags = [*SMALL, "--num-rounds=1", "--seed", "0", "1", "--num-workers=1", f"--run-dir={tmp_path}"]
    assert sim.main(flags) == 128 + signal.SIGTERM
    shown = capsys.readouterr().out
    assert "2 runs" in shown
    assert "no report: interrupted" in shown
    assert list(tmp_path.glob("compare-*/table.md"))


def test_ctrl_c_right_after_the_first_line(tmp_path: Path) -> None:
    """Whatever the program is importing or printing then."""
    call = [sys.executable, "sim.py", *SMALL, "--engine=inline", "--num-rounds=100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*call, f"--run-dir={tmp_path}", "--no-report"], cwd=ROOT, **pipes)
    assert process.stdout
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (128 + signal.SIGINT, b"")
    assert b"--resume" in out


@pytest.mark.slow
def test_ctrl_c_ends_a_run_on_ray_with_the_results_so_far(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, lines=4)
    assert code == 130, err
    check_results(out, err, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--local-steps=3000000"], ["--seed", "0", "1", "--num-workers=2"]])
def test_a_signal_that_ends_all_of_ray_too_is_no_failure(tmp_path: Path, flags: list[str]) -> None:
    """As from batch systems: no round can end after it.

    Ray itself may end the program, with 1 and without a word, before it notices that Ray is gone
    (docs/reliability.md); not three times in a row.
    """
    for attempt in "abc":
        code, out, err = interrupted(tmp_path / attempt, 1, *flags, number=signal.SIGTERM)
        if code != 1 or out:
            break
    assert code == 128 + signal.SIGTERM, err
    ended = json.loads(out)
    assert ended["interrupted"]
    assert not ended.get("failed")


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_for_workers(ray_cluster: None, tmp_path: Path) -> None:
    """Which may last for ever: other programs have all cores of the cluster."""
    import ray

    others = ray.remote(num_cpus=3)(type("Others", (), {})).remote()
    ray.get(others.__ray_ready__.remote())
    settings = {**SETTINGS, "engine": "ray", "num_workers": 2, "run_dir": str(tmp_path)}
    experiment = prepare(Plan.of(Settings(**settings)))
    transport, folder = virtual_transport(experiment), RunFolder(experiment.plan)

    def stopping(server: RoundServer, console: Console) -> AbstractContextManager[list[int]]:
        def press() -> None:
            while not server.reaching:
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        return stopping_on_interrupt(server, console)

    summary, _ = drive(experiment, transport, folder, Console(quiet=True), stopping=stopping)
    ray.kill(others)
    assert (summary["rounds"], summary["interrupted"]) == (0, True)


def test_two_ctrl_c_before_the_first_round(tmp_path: Path) -> None:
    """During the evaluation of the initial weights; the second one interrupts at once."""
    experiment = prepare(Plan.of(Settings(**SETTINGS, run_dir=str(tmp_path))))

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    experiment.strategy.evaluate_fn = interrupt
    transport, folder = virtual_transport(experiment), RunFolder(experiment.plan)
    summary, _ = drive(experiment, transport, folder, Console(quiet=True))
    assert (summary["rounds"], summary["client_fits"], summary["final"]["accuracy"]) == (0, 0, None)
    assert json.loads((folder.path / "summary.json").read_text()) == summary
    with np.load(folder.path / "weights.npz") as weights:
        np.testing.assert_array_equal(weights["arr_0"], experiment.initial.arrays()[0])


@pytest.mark.slow
def test_ctrl_c_while_ray_starts(tmp_path: Path) -> None:
    code, _, err = interrupted(tmp_path, lines=0)
    assert (code, err.strip()) == (130, "sim.py: interrupted before the first round")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_is_silent(number: int, tmp_path: Path) -> None:
    """It comes when PyTorch would be imported."""
    (tmp_path / "torch.py").write_text(f"import signal\nsignal.raise_signal({number:d})\n")
    call = [sys.executable, "sim.py", *SMALL, f"--run-dir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, b"", b"")


def test_a_signal_to_another_thread_ends_a_wait(simulate: Callable[..., Any]) -> None:
    """Flower's watch over the SuperLink raises one in its own thread, while a call of the Grid waits."""
    server = simulate(num_rounds=1).server
    server.reaching = True
    thread = threading.Thread(target=signal.raise_signal, args=[signal.SIGINT])

    def wait() -> None:
        thread.start()
        threading.Event().wait(PATIENCE)

    with stopping_at_once(server, Console()) as signals, pytest.raises(KeyboardInterrupt):
        wait()
    assert signals == [signal.SIGINT]
    thread.join()
