"""docs/run-folder.md names every key that runs write, and none that they never write; its code works."""

import csv
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from typing import Any

import numpy as np
import pytest
import torch
from test_engine_run_folder import no_file_above

import clients.simulated.virtual
import sim
from clients.simulated.cohort import train
from fedtide.config import Settings
from fedtide.engine.run import simulate
from fedtide.engine.run_files import records_in
from fedtide.engine.run_folder import RunFolder
from fedtide.plan import Plan

PAGE = (Path(sim.__file__).parent / "docs" / "run-folder.md").read_text(encoding="utf-8")
SMALL: dict[str, Any] = {"model": "logistic", "engine": "inline", "client_gpus": 0.0, "num_clients": 6}
SMALL |= {"num_rounds": 6, "local_steps": 3}
SMALL |= {"evaluate_on": "objective", "evaluate_clients": 2, "train_loss": True}
RUNS: dict[str, dict[str, Any]] = {
    "scheme-c:reboot=auto": {
        "option": ("departure=auto",),
        "arrivals": "5=3",
        "departures": "0=5",
        "trace": "pools:first=8+lost:p=0.2",
    },
    "mifa": {"trace": "phones+bernoulli:p=0.8+late:p=0.5,rounds=2", "clients_per_round": 3},
    "apfl": {"trace": "always"},
    "efl:abandon=auto,abandon-constant=1e-9,abandon-after=2": {"trace": "bernoulli:p=0.5"},
    "sequential-sgd": {"trace": "always"},
    "mimic:memory=client": {
        "departures": "0=4",
        "trace": "bernoulli:p=0.7",
        "initial_model": "two-norm:pilot=initial,min-change=0",
    },
    "fedavg": {"num_rounds": 40, "trace": "always"},  # interrupted
    "fedbuff": {"trace": "phones:cost=30+lost:p=0.2", "round_ends": 1, "departures": "0-3=4"},
    "fedasync:max-lag=0": {"trace": "always+late:p=0.5,rounds=2"},
    "fedasync:max-lag=1,stop-late=true": {"trace": "speeds:spread=1", "round_ends": 1},
    "mifa:table-memory=0": {},  # its table is larger than a file may be
    "fedsgd": {"model": "test_frozen.head"},
    "fedprox": {"trace": "always", "model": "test_engine_fastest.Skip"},  # trains by `loop`
    "fedexp": {"until_seconds": 1e-9},
}


def section(heading: str) -> str:
    """The part of the page under a heading."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def described(heading: str) -> set[str]:
    """The keys in the first column of a section's tables."""
    cells = [line.split("|")[1] for line in section(heading).splitlines() if line.startswith("|")]
    return {key for cell in cells for key in re.findall("`([^`]+)`", cell)}


def code(heading: str) -> list[str]:
    return re.findall("```python\n(.*?)```", section(heading) if heading else PAGE, re.DOTALL)


@contextmanager
def after_three_rounds(server: Any, console: Any) -> Iterator[list[int]]:
    """End a run early, as a signal does."""
    signals: list[int] = []

    def look(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            server.stopping = True
            signals.append(SIGINT)

    server.observers.append(look)
    yield signals


def scarce(*arguments: Any) -> Any:
    """Train up to two clients: there is not enough memory for more in one call."""
    if len(arguments[4]) > 2:
        raise MemoryError
    return train(*arguments)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of RUNS."""
    base = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients.simulated.virtual, "train", scarce)
        for k, (strategy, run) in enumerate(RUNS.items()):
            options = {"stopping": after_three_rounds} if strategy == "fedavg" else {}
            with no_file_above(10_000) if "table-memory" in strategy else nullcontext():
                simulate(
                    Plan.of(Settings(**{**SMALL, **run, "strategy": strategy})), base / str(k), **options
                )
    return [base / str(k) for k in range(len(RUNS))]


def keys_of(record: dict[str, Any]) -> Iterator[str]:
    yield from record
    yield from (f"seconds.{phase}" for phase in record["seconds"])
    yield from (
        f"{kind}.{key}" for kind in ("late", "discarded") for row in record.get(kind, []) for key in row
    )
    for event in record.get("events", []):
        yield from (f"{event['event']}.{key}" for key in event if key != "event")


def test_the_folder_has_the_name_that_is_described(tmp_path: Path) -> None:
    settings = Settings(run_dir=str(tmp_path), strategy="mifa", trace="always", seed=3)
    RunFolder(Plan.of(settings)).close()
    (folder,) = tmp_path.iterdir()
    pattern = re.search(r"`<run-dir>/(<time>.*?)`", PAGE)
    assert pattern is not None
    expected = re.sub("<(strategy|task|trace|seed)>", lambda m: str(getattr(settings, m[1])), pattern[1])
    assert re.fullmatch(expected.replace("<time>", r"\d{8}-\d{6}"), folder.name)


def test_every_key_is_described_and_no_other(folders: list[Path]) -> None:
    records = {key for folder in folders for record in records_in(folder) for key in keys_of(record)}
    assert records == described("metrics.jsonl")
    # Of runs whose display is lost, and of language models: tests/test_display.py, test_language.py
    found = {"display", "frozen_sha256"}
    for summary in (json.loads((folder / "summary.json").read_text()) for folder in folders):
        found |= summary.keys() - {"final"} | {f"final.{key}" for key in summary["final"]}
    assert found == described("summary.json")
    config = {key for folder in folders for key in tomllib.loads((folder / "config.toml").read_text())}
    assert config - Settings().as_mapping().keys() == described("config.toml") - {"flower-run"}


def test_every_column_of_a_comparison_is_described_and_no_other(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "c.toml"
    file.write_text('strategy = ["fedavg", "mifa"]\n[[cell]]\nlocal-steps = 2\npaper = 90.0\n')
    arguments = [f"--config={file}", f"--run-dir={tmp_path}", "--num-clients=4", "--num-rounds=2"]
    arguments += ["--num-workers=1", "--evaluate-on=objective", "--evaluate-clients=1", "--reach=0.1"]
    assert sim.main([*arguments, "--seed", "0", "1"]) == 0
    (folder,) = tmp_path.glob("compare-*")
    with (folder / "table.csv").open() as stream:
        columns = set(csv.DictReader(stream).fieldnames or [])
    assert columns - {"strategy", "local-steps"} == described("Comparisons")
    for name in [path.name for path in folder.iterdir()]:
        assert f"`{name}`" in PAGE or f"/{name}`" in PAGE


def test_the_weights_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, folder, ended = simulate(
        Plan.of(Settings(**SMALL, strategy="apfl", trace="always")), tmp_path / "run"
    )
    monkeypatch.chdir(folder.path)
    (block,) = code("weights.npz")
    names: dict[str, Any] = {}
    exec(block, names)
    x, labels = (torch.from_numpy(array) for array in experiment.data.holdout(np.arange(6)))
    accuracy = (names["model"](x).argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(ended.summary["final"]["accuracy"], abs=1e-6)


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_pandas_reads_the_rounds(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders[0])
    names: dict[str, Any] = {}
    exec(code("")[0], names)
    assert names["rounds"]["round"].tolist() == list(range(7))
    assert names["rounds"]["accuracy"].notna().all()
