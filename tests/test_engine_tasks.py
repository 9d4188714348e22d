"""Tasks other than classes: numbers, labels and characters train and are reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_multilabel_classification
from torch import Tensor, nn

import sim
from fedtide.engine.run_files import records_in
from fedtide.tasks import MODELS, TASKS, BinaryCrossEntropy, Dataset, DatasetTask

TEXT = "the quick brown fox jumps over the lazy dog. " * 60
LENGTH = 8
OWN = {"partition": "", "num_clients": 4, "evaluate_clients": 15}


class NextCharacter(nn.Module):
    """An embedding and a recurrent layer: integers in, logits for every position out."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_outputs, 8)
        self.recurrent = nn.GRU(8, 24, batch_first=True)
        self.last = nn.Linear(24, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(x))
        return self.last(states)


def characters() -> Dataset:
    alphabet = sorted(set(TEXT))
    numbers = np.array([alphabet.index(c) for c in TEXT])
    starts = np.arange(0, len(numbers) - LENGTH, LENGTH)
    x = np.stack([numbers[s : s + LENGTH] for s in starts])
    y = np.stack([numbers[s + 1 : s + LENGTH + 1] for s in starts])
    return Dataset((x[20:], y[20:]), (x[:20], y[:20]), len(alphabet))


def labels() -> Dataset:
    x, y = make_multilabel_classification(300, 12, n_classes=4, random_state=0)
    x, y = x / x.std(), y.astype(float)
    return Dataset((x[60:], y[60:]), (x[:60], y[:60]), 4, BinaryCrossEntropy())


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "characters", lambda: DatasetTask("characters", characters, "iid", "gru"))
    monkeypatch.setitem(TASKS, "labels", lambda: DatasetTask("labels", labels, "iid", "mlp"))
    monkeypatch.setitem(MODELS, "gru", lambda shape, num_outputs: NextCharacter(num_outputs))


@pytest.fixture
def diabetes(tmp_path: Path) -> str:
    x, y = load_diabetes(return_X_y=True)
    rows = np.column_stack([x, y, np.arange(len(y)) % 4])
    header = ",".join([f"x{j}" for j in range(10)] + ["progression", "clinic"])
    np.savetxt(tmp_path / "diabetes.csv", rows, "%.6g", delimiter=",", header=header, comments="")
    return f"csv:file={tmp_path / 'diabetes.csv'},target=progression,kind=regression,client=clinic"


def improvement(records: list[dict[str, Any]], key: str) -> float:
    return records[-1][key] - records[0][key]


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    ("task", "rate", "gain"), [("characters", 2.0, 0.5), ("labels", 0.1, 0.15), ("labels+logistic", 0.1, 0.1)]
)
def test_they_train_with_client_memory(
    simulate: Callable[..., Any], task: str, rate: float, gain: float
) -> None:
    task, _, model = task.partition("+")
    run = simulate(
        **OWN,
        task=task,
        model=model,
        strategy="scaffold",
        num_rounds=15,
        local_steps=8,
        learning_rate=rate,
    )
    assert improvement(run.records, "accuracy") > gain
    assert 0 < run.records[-1]["worst_client_accuracy"] <= run.records[-1]["tenth_percentile_accuracy"] <= 1
    if task == "characters":
        assert run.experiment.settings.cohort == "loop"


def test_regression_from_a_file(simulate: Callable[..., Any], diabetes: str) -> None:
    """The error is in the target's unit; predicting the mean would be wrong by 66."""
    run = simulate(
        **OWN,
        task=diabetes,
        model="",
        strategy="apfl",
        num_rounds=30,
        local_steps=10,
        learning_rate=0.02,
        evaluate_on="objective",
    )
    last = run.records[-1]
    assert last["mean_absolute_error"] < 55
    assert last["client_mean_absolute_error"] < 60
    assert last["worst_client_mean_absolute_error"] >= last["tenth_percentile_mean_absolute_error"] > 30
    assert "accuracy" not in last


def test_a_run_folder_names_the_metric(
    tmp_path: Path, diabetes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--num-clients=4", "--num-rounds=2", "--engine=inline", f"--run-dir={tmp_path}"]
    assert sim.main([*flags, f"--task={diabetes}", "--learning-rate=0.02"]) == 0
    shown = capsys.readouterr().out
    (folder,) = tmp_path.glob("*-csv*")
    assert "mean absolute error" in shown
    assert "mean_absolute_error" in [*records_in(folder)][-1]
    assert '"higher_is_better": false' in (folder / "summary.json").read_text()
    assert "Mean absolute error and loss" in (folder / "report.html").read_text()
    assert json.loads((folder / "clients.json").read_text())["metric"] == "mean absolute error"


MISFITS = {
    "--task=labels --partition=label": "partition label: the targets of this task are not classes; use",
    "--task=labels --trace=labels": "trace labels: the targets of task labels are not classes",
    "--task=characters --model=logistic": "does not fit the task with inputs of shape (8,) (int64)",
    "--model=gru": "the model does not fit the task with inputs of shape (1, 8, 8) (float32) and 10",
}


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("flags", MISFITS)
def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str) -> None:
    with pytest.raises(SystemExit) as caught:
        sim.main([*flags.split(), f"--run-dir={tmp_path}"])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert MISFITS[flags] in line
