"""What ends a run though the program is right: one line, exit code 1, and the last checkpoint is whole."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_engine_run_folder import no_file_above

import sim
from fedtide.engine.read_run import read_run
from fedtide.engine.server import RoundServer
from fedtide.report.__main__ import main as report

SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=6", "--local-steps=4", "--engine=inline"]


def run(*arguments: str, capsys: Any) -> tuple[int, str, Any]:
    small = [] if "--resume" in arguments else SMALL
    code = sim.main([*small, "--json", "--no-report", *arguments])
    shown = capsys.readouterr()
    return code, shown.err, json.loads(shown.out)


def only(path: Path) -> Path:
    (folder,) = path.iterdir()
    return folder


def test_no_room_for_a_table(tmp_path: Path, capsys: Any) -> None:
    """The rounds before are kept, and the run goes on from the checkpoint when there is room."""
    arguments = ["--strategy=mifa", "--option=table-memory=0", "--clients-per-round=3", "--num-rounds=60"]
    arguments += ["--num-clients=120"]
    _, _, whole = run(*arguments, f"--run-dir={tmp_path / 'whole'}", capsys=capsys)
    with no_file_above(200_000):
        code, shown, summary = run(
            *arguments, "--checkpoint-every=1", f"--run-dir={tmp_path / 'a'}", capsys=capsys
        )
    folder = only(tmp_path / "a")
    assert code == 1
    assert "File too large while storing the clients' vectors; free space or set table-folder" in shown
    assert re.search(rf"--resume {re.escape(str(folder))} .* round [1-9]\d*$", shown, re.MULTILINE)
    assert "Traceback" not in shown
    assert (folder / "weights.npz").exists()
    assert read_run(folder).problem == f"failed: {summary['failed']}"
    assert report([str(folder)]) == 0
    capsys.readouterr()
    assert "This run failed: " in (folder / "report.html").read_text()
    code, _, summary = run("--resume", str(folder), capsys=capsys)
    assert (code, summary["weights_sha256"]) == (0, whole["weights_sha256"])


def test_no_room_in_the_run_folder(tmp_path: Path, capsys: Any) -> None:
    """Records and checkpoints wait; at the end, what cannot be written is an error."""
    with no_file_above(2900):
        code, shown, summary = run("--num-rounds=6", f"--run-dir={tmp_path}", capsys=capsys)
    folder = only(tmp_path)
    assert code == 1
    assert "warning: no checkpoint of round 6: " in shown
    assert f"the run has failed: {folder / 'weights.npz'}: File too large" in shown
    assert summary["failed"].endswith("File too large")
    code, _, _ = run("--resume", str(folder), capsys=capsys)
    assert code == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 7


def test_the_run_folder_is_removed(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = RoundServer._run_round

    def remove(self: Any, server_round: int, *rest: Any) -> Any:
        if server_round == 3:
            shutil.rmtree(only(tmp_path))
        return rounds(self, server_round, *rest)

    monkeypatch.setattr(RoundServer, "_run_round", remove)
    code, shown, summary = run("--num-rounds=30", f"--run-dir={tmp_path}", capsys=capsys)
    assert (code, summary["rounds"]) == (1, 3)
    assert "the run folder has been removed" in shown
    assert "Traceback" not in shown
