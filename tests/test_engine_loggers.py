"""Loggers: what of a run is in TensorBoard, MLflow and Weights & Biases; and what if they fail."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import sim
from fedtide.config import Settings
from fedtide.engine.run import simulate
from fedtide.engine.run_files import records_in
from fedtide.loggers.base import Logger, finals, scalars
from fedtide.loggers.registry import LOGGERS, loggers_of
from fedtide.plan import Plan

SMALL = ["--engine=inline", "--client-gpus=0", "--model=logistic", "--num-clients=4", "--num-rounds=3"]
SMALL += ["--local-steps=4", "--num-workers=1"]


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the command line and returns what `--json` prints, with standard error."""

    def call(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert sim.main([*SMALL, f"--run-dir={tmp_path}", "--json", *arguments]) == 0
        shown = capsys.readouterr()
        (line,) = shown.out.splitlines()  # nobody else writes to standard output
        return {**json.loads(line), "err": shown.err}

    return call


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The numbers that a logger has of a run: by name, their rounds and values."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records_in(folder):
        for name, value in scalars(record).items():
            found.setdefault(name, []).append((record["round"], value))
    summary = json.loads((folder / "summary.json").read_text())
    return found | {name: [(summary["rounds"], value)] for name, value in finals(summary).items()}


def test_the_numbers_of_a_round() -> None:
    clients = {"selected": [0, 1, "a"], "active": [0, 1], "failed": {"a": "reply lost"}, "offline": 4}
    others = {"loss": 0.25, "accuracy": None, "bytes_up": 10, "converged": True, "events": []}
    record = {"round": 2, "seconds": {"train": 0.5}, **clients, "steps": [3, None], **others}
    counts = {"selected": 3, "active": 2, "failed": 1, "offline": 4}
    expected = {f"clients/{name}": number for name, number in counts.items()}
    numbers = {"seconds/train": 0.5, "local_steps": 3, "loss": 0.25, "bytes_up": 10}
    assert scalars(record) == expected | numbers


def curves_of_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def assert_close(
    found: dict[str, list[tuple[int, float]]], there: dict[str, list[tuple[int, float]]]
) -> None:
    assert found.keys() == there.keys()
    for name, curve in there.items():
        assert [step for step, _ in found[name]] == [step for step, _ in curve]
        assert [value for _, value in found[name]] == pytest.approx([v for _, v in curve], rel=1e-6)


@needs("tensorboard")
def test_tensorboard(run: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path(run("--log=tensorboard", "--trace=phones")["run_dir"])
    there = expected(folder)
    assert {"accuracy", "virtual_seconds", "clients/active", "seconds/train", "final/accuracy"} <= set(there)
    assert_close(curves_of_events(folder), there)
    # The settings stand in the view of hyperparameters.
    content = EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams")
    assert "_hparams_/session_end_info" in content
    assert b"learning-rate" in content["_hparams_/session_start_info"]


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs: to create its tables takes MLflow seconds, to copy them nothing."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@needs("mlflow")
def test_mlflow(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> None:
    from mlflow import MlflowClient

    def stored(uri: str) -> tuple[Any, Any]:
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("fedtide")
        return client, client.search_runs([experiment.experiment_id])

    for name in ("mlflow.db", "own.db"):
        shutil.copy(empty_database, tmp_path / name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = Path(run("--log=mlflow")["run_dir"])
    client, (logged,) = stored(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert (logged.info.run_name, logged.info.status) == (folder.name, "FINISHED")
    assert (logged.data.params["num-rounds"], logged.data.params["log"]) == ("3", "mlflow")
    there = expected(folder)
    found = {
        name: [(m.step, m.value) for m in client.get_metric_history(logged.info.run_id, name)]
        for name in logged.data.metrics
    }
    assert_close(found, there)
    # At a place of one's own; a run that fails has failed there, too.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'own.db'}")

    @contextmanager
    def failing(server: Any, console: Any) -> Iterator[list[int]]:
        server.observers.append(lambda record: 1 // (2 - record["round"]))
        yield []

    settings = Settings(num_rounds=3, engine="inline", log="mlflow")
    watch = partial(loggers_of, settings.log, console=Console(quiet=True))
    with pytest.raises(ZeroDivisionError):
        simulate(Plan.of(settings), tmp_path / "bad", watch=watch, stopping=failing)
    client, (logged,) = stored(f"sqlite:///{tmp_path / 'own.db'}")
    assert logged.info.status == "FAILED"
    assert [m.step for m in client.get_metric_history(logged.info.run_id, "accuracy")] == [0, 1, 2]


@needs("wandb")
def test_wandb_offline(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    summary = run("--log=wandb")
    wandb.teardown()  # ends its process
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    there = expected(Path(summary["run_dir"]))
    for name in (*there, "learning-rate", Path(summary["run_dir"]).name, "fedtide"):
        assert name.encode() in content, name
    assert repr(there["accuracy"][-1][1]).encode() in content


@needs("mlflow")
@needs("tensorboard")
def test_each_cell_of_a_comparison_is_a_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    from mlflow import MlflowClient

    shutil.copy(empty_database, tmp_path / "here.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'here.db'}")
    client = MlflowClient(f"sqlite:///{tmp_path / 'here.db'}")
    cells = ["--strategy", "fedavg", "mifa", "--seed", "0"]
    run(*cells)
    shown = run(*cells, "1", "--log=mlflow,tensorboard")  # those of seed 0 are finished, whatever the log
    experiment = client.get_experiment_by_name("fedtide").experiment_id
    logged = {r.info.run_name: r for r in client.search_runs([experiment])}
    assert logged.keys() == {"strategy=fedavg, seed=1", "strategy=mifa, seed=1"}
    folder = Path(shown["folder"])
    assert {r.data.tags["comparison"] for r in logged.values()} == {folder.name}
    events = {path.name.rpartition("-")[0]: path for path in (folder / "logs").iterdir()}
    assert events.keys() == {"strategy=fedavg-seed=1", "strategy=mifa-seed=1"}
    (cell,) = tmp_path.glob("cells/mifa-*-seed1-*")
    curves = curves_of_events(events["strategy=mifa-seed=1"])
    assert_close(curves, expected(cell))
    metrics = logged["strategy=mifa, seed=1"].data.metrics
    assert metrics["final/accuracy"] == pytest.approx(curves["final/accuracy"][0][1])
    run(*cells, "1", "--log=mlflow,tensorboard", "--fresh")
    assert len(client.search_runs([experiment])) == 6
    assert all(len([*path.iterdir()]) == 1 for path in (folder / "logs").iterdir())


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("nonesuch", "unknown log 'nonesuch'; known: tensorboard, mlflow, wandb"),
        ("json,json", "json is given twice"),
        ("tensorboard:path=x", "loggers take no options"),
        ("tensorboard", "--log tensorboard: the package is not installed"),
        ("wandb", "pip install wandb"),
    ],
)
@pytest.mark.parametrize("cells", [[], ["--seed", "0", "1"]])
def test_refused_before_anything_is_trained(
    log: str, says: str, cells: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(LOGGERS, "json", Failing)
    if log in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, log, None)  # as if it were not installed
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(SystemExit) as ended:
        sim.main([*SMALL, f"--run-dir={tmp_path}", "--log", log, *cells])
    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert says in error
    assert not [*tmp_path.iterdir()]


class Failing(Logger):
    """A logger whose server goes away in round 2."""

    module = "json"

    def round(self, record: Any) -> None:
        if record["round"] >= 2:
            raise OSError(28, "No space left\non device")

    def finish(self, summary: Any) -> None:
        raise AssertionError("it hears no more")

    def close(self) -> None:
        raise OSError("nor can it be closed")


def test_a_logger_that_cannot_be_made_is_left_out(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unmade(Failing):
        def __init__(self, run: Any) -> None:
            raise ConnectionError("nobody answers")

    monkeypatch.setitem(LOGGERS, "unmade", Unmade)
    done = run("--log=unmade")
    assert done["rounds"] == 3
    assert "--log unmade failed: ConnectionError: nobody answers; the run continues without it" in done["err"]
    assert done["err"].count("unmade") == 1


def test_a_logger_that_fails_is_a_line_of_warning(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOGGERS, "failing", Failing)
    plain, watched = run(), run("--log=failing")
    assert watched["weights_sha256"] == plain["weights_sha256"]
    assert watched["rounds"] == 3
    assert math.isfinite(watched["final"]["loss"])
    (line,) = [line for line in watched["err"].splitlines() if "failing" in line]
    assert "--log failing failed: OSError: [Errno 28] No space left on device; " in line
