"""The list of run folders."""

from pathlib import Path

import pytest

import sim
from flexfl.runs import differing, find_runs, main

SMALL = [
    "--model=logistic",
    "--num-clients=4",
    "--num-rounds=2",
    "--local-steps=2",
    "--trace=always",
    "--engine=inline",
]


def test_runs_are_listed_by_what_sets_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--strategy=fedavg"], ["--strategy=mifa", "--seed=3"]):
        assert sim.main([*SMALL, *arguments, f"--run-dir={tmp_path}"]) == 0
    cut_off = tmp_path / "99999999-cut-off"
    cut_off.mkdir()
    (cut_off / "config.toml").write_text('strategy = "[red]x"\nseed = 9\n')
    (cut_off / "summary.json").write_text("{")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "a-file").write_text("")
    runs = find_runs(tmp_path)
    assert [run.ended for run in runs] == ["finished", "finished", "not finished"]
    assert differing(runs[:2]) == ["strategy", "seed"]
    capsys.readouterr()
    assert main([str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[red]x" in shown
    assert f"{runs[1].summary['final']['accuracy']:.4f}" in shown


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
