"""The run folder where files cannot grow: nothing is lost, and the run goes on."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedtide.base.errors import SettingsError
from fedtide.config import Settings
from fedtide.engine.run_files import records_in
from fedtide.engine.run_folder import RunFolder
from fedtide.plan import Plan


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_wait_until_there_is_room(tmp_path: Path) -> None:
    folder, shown = RunFolder(Plan.of(Settings()), tmp_path / "run"), list[str]()
    write, folder.warn = folder.round, shown.append
    metrics = tmp_path / "run" / "metrics.jsonl"
    write({"round": 0})
    with no_file_above(metrics.stat().st_size + 5):  # a part of the next line fits
        write({"round": 1})
        write({"round": 2})
        with pytest.raises(OSError, match="File too large"):
            folder.finish({})
    assert metrics.read_bytes() == b'{"round": 0}\n{"rou'
    write({"round": 3})
    folder.finish({})
    folder.close()
    assert [*records_in(tmp_path / "run")] == [{"round": t} for t in range(4)]
    assert shown == ["warning: metrics.jsonl: File too large; the run continues and retries each round"]


def test_a_full_disk_before_the_first_round(tmp_path: Path) -> None:
    """One line, and no folder that holds no run."""
    with no_file_above(0), pytest.raises(SettingsError, match=rf"run-dir {tmp_path}/.*: File too large"):
        RunFolder(Plan.of(Settings(run_dir=str(tmp_path))))
    assert not [*tmp_path.iterdir()]
    folder = RunFolder(Plan.of(Settings()), tmp_path / "run")
    with no_file_above(0), pytest.raises(SettingsError, match=r"run: clients\.csv: File too large"):
        folder.write_names(["Ada"])
    folder.close()


def test_the_arguments_of_flower_are_nobodys_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["flwr-serverapp", "--token", "secret"])
    RunFolder(Plan.of(Settings()), tmp_path / "run", flower_run="7").close()
    text = (tmp_path / "run" / "config.toml").read_text()
    assert ("flwr-serverapp" in text, "secret" in text) == (True, False)


def test_it_stays_where_it_is_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Plan.of(Settings(run_dir="runs")))
    monkeypatch.chdir("/")
    folder.round({"round": 0})
    folder.finish({"rounds": 0})
    folder.close()
    (path,) = (tmp_path / "runs").iterdir()
    assert {file.name for file in path.iterdir()} == {"config.toml", "metrics.jsonl", "summary.json"}
