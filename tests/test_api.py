"""The Python interface: the same runs as the command line's, parts as objects, errors as exceptions."""

import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import scipy.sparse
import torch
from torch import nn

import fedtide
import sim
from fedtide.api.values import setting_values
from fedtide.engine.client_numbers import read_numbers
from fedtide.report.__main__ import main as report
from fedtide.tasks import digits
from fedtide.tasks.data import test_rows as held_rows
from strategies.fedavg import FedAvg
from traces import RoundAvailability, Trace

SMALL: dict[str, Any] = {"num_clients": 6, "num_rounds": 4, "report": False, "progress": False}


class Halved(FedAvg):
    """FedAvg that goes half as far; this module is importable, its subclass below is not."""

    def update(self, replies: Any) -> None:
        before = self.weights.copy()
        super().update(replies)
        self.weights = (self.weights + before) / 2


class Broken(FedAvg):
    """Has a defect."""

    def update(self, replies: Any) -> None:
        raise ValueError("a defect")


class Small(nn.Sequential):
    """Makes a model of digits, and takes no arguments."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


class OddClients(Trace):
    """Clients with odd numbers are online; `interrupt` presses Ctrl-C in that round, once."""

    def __init__(self, num_clients: int, seed: int = 0, *, interrupt: int = 0) -> None:
        self.num_clients, self.interrupt = num_clients, interrupt

    def round(self, t: int) -> RoundAvailability:
        if t == self.interrupt:
            self.interrupt = 0
            signal.raise_signal(signal.SIGINT)
        online = np.arange(self.num_clients) % 2 == 1
        return RoundAvailability(np.ones(self.num_clients, bool), online, online.astype(np.float32))


THREE = fedtide.Task.from_arrays(np.eye(60), np.arange(60) % 2, clients=np.arange(60) % 3)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, fedtide; print(*({'torch', 'flwr', 'ray', 'pandas', 'numpy'} & {*sys.modules}))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=sim.__file__.rpartition("/")[0]) == b"\n"


def test_a_run_is_that_of_the_command_line() -> None:
    run = fedtide.run(strategy="mimic", seed=3, **SMALL)
    assert sim.main(["--strategy=mimic", "--seed=3", "--num-clients=6", "--num-rounds=4", "--no-report"]) == 0
    (other,) = (path for path in Path("runs").absolute().iterdir() if path != run.path)
    found = fedtide.load(other)
    assert isinstance(found, fedtide.Run)
    assert found.summary["weights_sha256"] == run.summary["weights_sha256"]
    assert (run.status, run.accuracy) == ("finished", found.accuracy)
    assert run.metrics.accuracy.iloc[-1] == run.accuracy
    assert run.metrics.index.tolist() == [0, 1, 2, 3, 4]
    x, y = digits().dataset().test
    right = (run.model()(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    assert right == pytest.approx(run.accuracy)
    assert "accuracy" in repr(run)


def test_arrays_with_a_criterion_of_their_own() -> None:
    from fedtide.tasks import BinaryCrossEntropy

    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    labels = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] < 0], axis=1).astype(np.float32)
    task = fedtide.Task.from_arrays(x, labels, clients=np.arange(200) % 6, criterion=BinaryCrossEntropy())
    run = fedtide.run(task=task, strategy="fedavg", trace="always", **{**SMALL, "num_rounds": 40})
    with torch.no_grad():
        outputs = run.model()(torch.from_numpy(task.test[0])).numpy()
    assert run.accuracy == pytest.approx(((outputs > 0) == (task.test[1] > 0.5)).mean())
    assert run.accuracy > 0.95
    marked = fedtide.Task.from_arrays(
        x, labels > 0, clients=np.arange(200) % 6, criterion=BinaryCrossEntropy()
    )
    again = fedtide.run(task=marked, strategy="fedavg", trace="always", **{**SMALL, "num_rounds": 40})
    assert again.summary["weights_sha256"] == run.summary["weights_sha256"]
    with pytest.raises(ValueError, match="targets other than 0 and 1"):
        fedtide.run(task=fedtide.Task.from_arrays(x, 2 * labels, criterion=BinaryCrossEntropy()), **SMALL)


def test_the_history_of_one_client() -> None:
    names = np.array(["Pia", "Nora", "Otto"])[np.arange(60) % 3]
    task = fedtide.Task.from_arrays(np.eye(60), np.arange(60) % 2, clients=names)
    few = {**SMALL, "num_clients": 3, "num_rounds": 30, "local_steps": 4, "task": task}
    run = fedtide.run(strategy="fedavg", trace="bernoulli:p=0.7+pools:first=8+lost:p=0.3", **few)
    history = run.client("Otto")
    assert history.equals(run.client(1))
    records = run.records[1:]
    assert history.index.tolist() == [record["round"] for record in records]
    for (_, row), record in zip(history.iterrows(), records, strict=True):
        counted = dict(zip(record["active"], record["steps"], strict=True))
        assert (1 in counted) == (row.state in ("complete", "incomplete"))
        if 1 in counted:
            assert (row.steps, row.state) == (counted[1], "complete" if counted[1] == 4 else "incomplete")
        else:
            assert row.reason == record["failed"].get("1", "")
            assert (row.state == "lost") == (row.reason == "reply lost")
    assert {"incomplete", "lost", "offline"} <= {*history.state}
    assert not [column for column in run.metrics.columns if column.startswith("failed.")]
    with pytest.raises(fedtide.SettingsError, match=r"no client 'oto'; did you mean Otto"):
        run.client("oto")
    late = fedtide.run(strategy="fedbuff", trace="phones", round_ends=2, **{**SMALL, "num_rounds": 12})
    lags = {c: dict(late.client(c).lag.dropna()) for c in range(6)}
    told = [(r["round"], one["client"], one["lag"]) for r in late.records for one in r.get("late", [])]
    assert told
    assert all(lags[client][t] == lag for t, client, lag in told)


def test_parts_are_objects() -> None:
    class Local(Halved):
        """Not importable by another process."""

    class Net(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(3, 2))

    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(90, 3)), np.arange(90) % 6
    task = fedtide.Task.from_arrays(x[:, ::-1], x[:, 0] > 0, clients=owners)
    parts = {"task": task, "model": Net, "trace": OddClients(6)}
    run = fedtide.run(strategy=Local, learning_rate=0.5, **parts, **SMALL)
    assert run.accuracy > 0.7
    assert {k for record in run.records[1:] for k in record["active"]} == {1, 3, 5}
    assert isinstance(run.model(), Net)
    assert "-Local-" in run.path.name
    assert repr(run).startswith("<Run Local on ")
    named = fedtide.run(strategy=Halved, learning_rate=0.5, **parts, **SMALL)
    assert named.settings.strategy == f"{__name__}.Halved"
    assert named.summary["weights_sha256"] == run.summary["weights_sha256"]
    assert isinstance(fedtide.run(model=Small, **SMALL).model(), Small)
    regression = fedtide.Task.from_arrays(x, x[:, 0] * 2, model="mlp")
    assert fedtide.run(task=regression, partition="iid", learning_rate=0.02, **SMALL).final < 2


def test_methods_given_as_objects_keep_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    def method(power: float) -> type[FedAvg]:
        class Slowed(FedAvg):
            def update(self, replies: Any) -> None:
                before = self.weights.copy()
                super().update(replies)
                self.weights = before + (self.weights - before) * power

        return Slowed

    slow, slower = method(0.9), method(0.2)
    table = fedtide.compare(strategy=["fedavg", slow], num_workers=1, **SMALL)
    assert table.frame["strategy"].tolist() == ["fedavg", "Slowed"]
    assert "| Slowed |" in (table.folder / "table.md").read_text()
    with pytest.raises(fedtide.SettingsError, match="strategy: several of Slowed have the same name"):
        fedtide.compare(strategy=[slow, slower], num_workers=1, **SMALL)
    other = fedtide.compare(strategy=["fedavg", slower], num_workers=1, run_dir="others", **SMALL)
    assert other.rows[0].score == table.rows[0].score
    assert other.rows[1].score.mean < table.rows[1].score.mean
    assert report([str(table.folder), str(other.folder)]) == 2
    assert "these runs have several versions of Slowed: report one at a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "fedau:estimator=known", "trace": "labels:floor=1"},
        {"strategy": "apfl", "evaluate_clients": 6, "trace": "always", "engine": "ray", "num_workers": 1},
        {"strategy": "pfedme", "evaluate_on": "objective", "trace": "always"},
        {"strategy": "mifa", "evaluate_on": "present", "trace": "sessions:kind=always", "round_ends": 2},
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")  # of 0 / 0
def test_a_client_without_examples_never_takes_part(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(90, 3)), np.repeat([0, 2, 5], 30)  # 1, 3 and 4 have none
    task = fedtide.Task.from_arrays(x, (x[:, 0] > 0).astype(int), clients=owners)
    run = fedtide.run(task=task, **settings, **SMALL)
    assert {k for record in run.records[1:] for k in record["selected"]} == {0, 2, 5}
    assert not any(record["failed"] for record in run.records[1:])


def test_a_method_of_ones_own_runs_once_unless_it_allows_more() -> None:
    class Counted(FedAvg):
        calls = 0

        def update(self, replies: Any) -> None:
            type(self).calls += 1
            super().update(replies)

    class Pure(Counted):
        replayable = True

    settings = SMALL | {"report": True, "trace": "always"}
    run = fedtide.run(strategy=Counted, **settings)
    found = read_numbers(run.path)
    assert found is not None
    assert (Counted.calls, found.update_shares) == (4, [])
    assert "set replayable = True in its class" in found.notes[0]
    found = read_numbers(fedtide.run(strategy=Pure, **settings).path)
    assert found is not None
    assert (Pure.calls, sum(found.update_shares)) == (4 + 8, pytest.approx(1, abs=1e-4))


def test_a_comparison() -> None:
    given = {"strategy": ["fedavg", Halved], "seed": [0, 1], "num_workers": 1, **SMALL}
    table = fedtide.compare(reach=0.5, **given)
    assert [len(row.runs) for row in table.rows] == [2, 2]
    assert table.frame["accuracy"].tolist() == [row.score.mean for row in table.rows]
    assert table._repr_html_().count("data:image/svg+xml") == 1
    again, read = fedtide.compare(reach=0.5, **given), fedtide.load(table.folder)
    assert isinstance(read, fedtide.Comparison)
    assert repr(again) == repr(read) == repr(table)
    assert again.claims == read.claims == table.claims
    assert "1 setting: too few to tell methods apart by accuracy" in table.claims[0]
    assert [run.path for _, run in read.runs] == [run.path for _, run in table.runs]
    assert [len(run.metrics) for _, run in table.runs] == [len(run.metrics) for _, run in read.runs]


WIDTH = 4


def network(width: int) -> Any:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    return make


def of_global_width() -> nn.Module:
    made: nn.Module = network(WIDTH)()
    return made


def test_another_object_never_gets_results_of_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closures, partials, globals, of importable functions too; and what cannot be compared."""
    given = {"seed": [0, 1], "num_workers": 1, **SMALL, "num_rounds": 1}

    def widths(model: Any) -> set[int]:
        table = fedtide.compare(model=model, **given | {"progress": True})
        return {run.weights[0].shape[0] for _, run in table.runs}

    assert (widths(network(4)), widths(network(6))) == ({4}, {6})
    assert "finished already" not in capsys.readouterr().out
    assert widths(network(4)) == {4}
    assert "2 of 2 runs were finished already" in capsys.readouterr().out
    assert [widths(partial(lambda width: network(width)(), n)) for n in (4, 6)] == [{4}, {6}]
    assert widths(of_global_width) == {4}
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", 6)
    assert widths(of_global_width) == {6}
    capsys.readouterr()
    locked = partial(lambda lock, width: network(width)(), threading.Lock())
    assert widths(partial(locked, 4)) == {4} == widths(partial(locked, 4))
    shown = capsys.readouterr().out
    assert "finished already" not in shown
    assert shown.count("not all of it can be compared with other calls") == 2


def test_what_python_has_for_paths_and_for_several_values(tmp_path: Path) -> None:
    small = {**SMALL, "num_rounds": np.int64(1), "num_workers": 1, "run_dir": Path("runs")}
    small |= {"learning_rate": np.float32(0.5), "train_loss": np.bool_(True)}
    tables = [
        fedtide.compare(seed=seeds, reach=np.array([0.1]), **small)
        for seeds in (range(2), np.arange(2), (0, 1), (k for k in [0, 1]), {0: "", 1: ""}.keys())
    ]
    assert len({table.folder for table in tables}) == 1
    run = fedtide.run(**{**small, "seed": np.int8(3)})
    longer = fedtide.run(resume=run.path, num_rounds=2, progress=False)
    assert (longer.path, len(longer.records)) == (run.path, 3)


def test_results_are_found_after_the_working_directory_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fedtide.run(run_dir="here", **SMALL)
    table = fedtide.compare(run_dir="here", seed=[0, 1], num_workers=1, **SMALL)
    loaded = [fedtide.load(os.path.relpath(path)) for path in (run.path, table.folder)]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert len(run.weights) == len(run.model().state_dict())
    for comparison in (table, loaded[1]):
        assert isinstance(comparison, fedtide.Comparison)
        assert comparison.folder.is_dir()
        assert all(len(cell.weights) for _, cell in comparison.runs)
    assert loaded[0].weights[0].tolist() == run.weights[0].tolist()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_objects_reach_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import what lies in the working directory, and get all else; the session's Ray is used."""
    monkeypatch.chdir(Path(__file__).parent)

    class Local(Halved):
        """Not importable by another process."""

    given = {"trace": OddClients(6), "num_workers": 2, "run_dir": str(tmp_path), **SMALL}
    table = fedtide.compare(strategy=[Halved, Local], **given)
    first, second = (run.summary["weights_sha256"] for _, run in table.runs)
    assert first == second
    assert ray.is_initialized()


def test_an_interrupted_run_resumes() -> None:
    whole = fedtide.run(trace=OddClients(6), **SMALL)
    trace = OddClients(6, interrupt=2)
    with pytest.raises(KeyboardInterrupt, match="resume") as stopped:
        fedtide.run(trace=trace, **SMALL)
    folder = str(stopped.value).split("'")[1]
    assert fedtide.load(folder).status == "interrupted"  # type: ignore[union-attr]
    resumed = fedtide.run(resume=folder, progress=False)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "mimik"}, "did you mean mimic"),
        ({"num_client": 3}, "did you mean num-clients"),
        ({"trace": "bernoulli:p=2"}, "from 0 to 1"),
        ({"task": "python.gone"}, "give it again"),
        ({"task": THREE}, "num-clients to 3"),
    ],
)
def test_errors(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fedtide.SettingsError, match=words) as error:
        fedtide.run(**settings, progress=False)
    assert "\n" not in str(error.value)


def test_a_defect_is_no_error_in_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """It keeps its traceback, in Python and on the command line, and a line says whose it is."""
    with pytest.raises(ValueError, match="a defect") as error:
        fedtide.run(strategy=Broken, **SMALL)
    assert not isinstance(error.value, fedtide.SettingsError)
    with pytest.raises(SystemExit, match="1"):
        sim.main([f"--strategy={__name__}.Broken", "--num-rounds=2", "--no-report"])
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    told = r"error: test_api\.Broken\.update: ValueError: a defect \(test_api\.py, line \d+\)"
    assert re.search(told, shown[-1])


def test_what_a_part_cannot_be() -> None:
    """And what a setting may be besides the types of the command line."""
    for kind in ("strategy", "model", "task", "trace", "partition"):
        with pytest.raises(fedtide.SettingsError, match=f"^{kind} is 5; give a name, a class or a function$"):
            fedtide.run(**{kind: 5})
    with pytest.raises(fedtide.SettingsError, match=r"^model torch\..*Linear: TypeError: .*; name a f"):
        fedtide.run(model=nn.Linear, **SMALL)
    assert setting_values({"seed": range(2), "run_dir": Path("a")}) == {"seed": [0, 1], "run-dir": "a"}
    assert setting_values({"seed": np.arange(2)}) == {"seed": [0, 1]}


def test_arrays_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="y has shape"):
        fedtide.Task.from_arrays(np.eye(4), [0, 1])
    tensor, masked = torch.eye(4, requires_grad=True), np.ma.masked_equal(np.arange(4), 3)
    x, y, sparse = np.eye(4), [0, 1, 0, 1], scipy.sparse.eye(4)
    for says, given, more in (
        (r"^x: Can't call numpy\(\) on Tensor that requires grad\. Use tensor\.detach", (tensor, y), {}),
        (r"^x is a dia_matrix; convert it to an array, as by toarray\(\)", (sparse, y), {}),
        ("^x: .* inhomogeneous shape", ([[1], [2, 3]], [0, 1]), {}),
        ("^y: a number is missing", (x, masked), {}),
        ("^clients: a number is missing", (x, y), {"clients": masked}),
        ("^test inputs: a number is missing", (x, y), {"test": (np.ma.masked_equal(x, 1), y)}),
    ):
        with pytest.raises(fedtide.SettingsError, match=says):
            fedtide.Task.from_arrays(*given, **more)
    with pytest.raises(fedtide.SettingsError, match="9223372036854775813 is beyond the integers of 64 bits"):
        fedtide.Task.from_arrays(np.full((4, 2), 2**63 + 5, np.uint64), y).dataset()
    rare = np.where(np.arange(40) == np.flatnonzero(held_rows(40))[0], 2, np.arange(40) % 2)
    assert fedtide.Task.from_arrays(np.eye(40), rare).dataset().num_outputs == 3  # a class of tests alone
    with pytest.raises(fedtide.SettingsError, match=r"inputs of shape \(0,\), without a number"):
        fedtide.Task.from_arrays(x[:, :0], y).dataset()
    with pytest.raises(fedtide.SettingsError, match="not a run folder"):
        fedtide.load(".")


def test_weights_of_any_round(tmp_path: Path) -> None:
    """Those after round 4 are those with which a run of four rounds ends, also if it goes on from there."""
    changes = {"model": "logistic", "engine": "inline", "client_gpus": 0.0, "num_clients": 4, "report": False}
    short = fedtide.run(num_rounds=4, run_dir=tmp_path / "short", keep_weights=2, **changes)
    ended = short.weights
    whole = fedtide.run(num_rounds=7, run_dir=tmp_path / "whole", keep_weights=2, **changes)
    longer = fedtide.run(num_rounds=7, resume=short.path, keep_weights=3, **changes)
    assert (whole.kept_rounds, longer.kept_rounds) == ([0, 2, 4, 6], [0, 2, 4, 6])
    final = [ended, whole.weights_after(4), [*whole.model(4).parameters()]]
    for one, other, of_model in zip(*final, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, of_model.detach())
    for one, other in zip(whole.weights_after(6), longer.weights_after(6), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="has no weights of round 5: --keep-weights 5 would have kept"):
        whole.weights_after(5)
    for number in (8, -1):
        with pytest.raises(fedtide.SettingsError, match=rf"has rounds 0 to 7, and no round {number}"):
            whole.weights_after(number)
