"""Resuming a run folder that was changed: the right bits, or one line and nothing is touched."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sim
from fedtide.config import Settings
from fedtide.engine.read_run import read_run
from fedtide.engine.run import simulate
from fedtide.engine.run_folder import RunFolder
from fedtide.plan import Plan

ROUNDS = 7
STATES = "checkpoint/states.sqlite"
FILES = ("metrics.jsonl", "config.toml", "summary.json", STATES)
RUN: dict[str, Any] = {"strategy": "mifa", "model": "logistic", "num_clients": 4, "local_steps": 2}
SETTINGS = Settings(**RUN, num_rounds=5, checkpoint_every=2, engine="inline", client_gpus=0.0, seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, with checkpoints after the last two."""
    path = tmp_path_factory.mktemp("runs") / "run"
    simulate(Plan.of(SETTINGS), path)
    return path


@pytest.fixture(scope="module")
def whole(run: Path) -> Any:
    """The summary of the same run with more rounds."""
    copy = Path(shutil.copytree(run, run.with_name("whole")))
    return resume(copy)[1]


def resume(path: Path) -> tuple[int | str | None, Any, str]:
    """Resume a run for some more rounds; return the exit code, the summary, and what was said."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = sim.main(["--resume", str(path), f"--num-rounds={ROUNDS}", "--json", "--no-report"])
        except SystemExit as ended:
            return ended.code, None, err.getvalue()
    return code, json.loads(out.getvalue()), err.getvalue()


def content(path: Path) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for folder, _, names in os.walk(path) for name in names}


@st.composite
def damages(draw: Any) -> tuple[str, float, int]:
    """A file, a place in it from 0 to 1, and the bits of a byte that change there."""
    return draw(st.sampled_from(FILES)), draw(st.floats(0, 1)), draw(st.integers(1, 255))


@settings(max_examples=15)
@given(damage=damages())
@example(damage=("metrics.jsonl", 0.5, 1))
@example(damage=("config.toml", 0.5, 128))
@example(damage=(STATES, 0.0, 1))
@example(damage=(STATES, 0.5, 1))
def test_a_byte_that_was_changed(run: Path, whole: Any, damage: tuple[str, float, int], copies: Any) -> None:
    name, place, bits = damage
    path = next(copies)
    shutil.copytree(run, path)
    data = bytearray((path / name).read_bytes())
    used = [at for at, byte in enumerate(data) if byte]  # a checkpoint is mostly zeros
    data[used[round(place * (len(used) - 1))]] ^= bits
    (path / name).write_bytes(data)
    before = content(path)
    code, summary, said = resume(path)
    if code == 2:
        assert said.count("\n") == 1
        assert content(path) == before
    else:
        assert code == 0
        same = ("rounds", "weights_sha256", "client_fits", "final")
        assert "stopped" in summary or [summary[k] for k in same] == [whole[k] for k in same], said
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("name", "was", "now", "words"),
    [
        ("config.toml", "seed = 3", "seed = 4", "config.toml was changed: seed was 3, not 4; a resumed run"),
        ("config.toml", "[versions]", "[versions", "config.toml: not TOML"),
        ("metrics.jsonl", '"round": 1', '"round": 7', "metrics.jsonl was changed in its first"),
        ("metrics.jsonl", None, None, "metrics.jsonl: No such file"),
    ],
)
def test_what_was_changed_is_named(run: Path, copies: Any, name: str, was: str, now: str, words: str) -> None:
    path = Path(shutil.copytree(run, next(copies)))
    if was:
        text = (path / name).read_text()
        assert was in text
        (path / name).write_text(text.replace(was, now))
    else:
        (path / name).unlink()
    before = content(path)
    code, _, said = resume(path)
    assert (code, said.count("\n"), words in said) == (2, 1, True), said
    assert content(path) == before


def test_records_after_the_checkpoint_before_the_last(run: Path, whole: Any, copies: Any) -> None:
    """If these are damaged, only what they are about is done again."""
    path = Path(shutil.copytree(run, next(copies)))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"round": 5', '"round"; 5'))
    code, summary, said = resume(path)
    assert (code, summary["weights_sha256"]) == (0, whole["weights_sha256"])
    assert "the checkpoint of round 5 is damaged: metrics.jsonl was changed" in said
    assert "resuming after round 4" in said


@pytest.mark.parametrize("killed", ["before any checkpoint", "while the first one was begun"])
def test_killed_before_its_first_round(run: Path, whole: Any, copies: Any, killed: str) -> None:
    path = next(copies)
    RunFolder(Plan.of(read_run(run).settings), path).close()
    if "begun" in killed:
        (path / STATES).parent.mkdir()
        (path / STATES).touch()
    code, summary, said = resume(path)
    assert (code, summary["weights_sha256"]) == (0, whole["weights_sha256"])
    assert "starts over" not in said  # it had done nothing


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("copies")
    return (folder / str(number) for number in range(10**6))
