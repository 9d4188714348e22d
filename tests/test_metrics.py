"""Metrics of one's own choice: their values are scikit-learn's on the exported model, on every engine."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as scikit
from sklearn.datasets import load_breast_cancer, load_diabetes, make_multilabel_classification
from test_run_folder_page import described

import fedtide
import sim
from fedtide.base import memory
from fedtide.base.contract.metrics import OF_CLIENTS, RECORDED
from fedtide.base.errors import SettingsError
from fedtide.base.specs import split_specs
from fedtide.config import Settings
from fedtide.engine import memory_check
from fedtide.engine.memory_check import check_metrics
from fedtide.engine.read_run import Run
from fedtide.engine.run_files import records_in
from fedtide.federation import Federation
from fedtide.tasks import CROSS_ENTROPY, TASKS, BinaryCrossEntropy, Dataset, DatasetTask
from fedtide.tasks.metrics import SCIKIT_LEARN, MetricFunction, View, metric_functions, view_of

SPECS = ("f1_score:average=macro", "roc_auc:multi_class=ovr", "log_loss", "test_metrics.missed:label=4")
KEYS = ("f1_score_macro", "roc_auc_ovr", "log_loss", "missed_4")
SMALL: dict[str, Any] = {"num_clients": 5, "num_rounds": 3, "model": "logistic", "client_gpus": 0.0}
SMALL |= {"report": "none", "partition": "iid", "metrics": SPECS}


def missed(y_true: NDArray[Any], y_pred: NDArray[Any], *, label: int = 3) -> float:
    """The share of one class that is not found."""
    return float(np.mean(y_pred[y_true == label] != label))


missed.higher_is_better, missed.is_share = False, True  # type: ignore[attr-defined]


def widest(y_true: NDArray[Any], outputs: NDArray[Any]) -> float:
    """How far the raw outputs are apart."""
    return float(np.ptp(outputs)) + 0 * len(y_true)


def of_tensors(preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The accuracy, as torchmetrics takes its arguments."""
    return (preds.argmax(-1) == target).float().mean()


def changing(y_true: NDArray[Any], y_pred: NDArray[Any]) -> float:
    """Fail where predictions are not those that metrics are tried with: of the trained model alone."""
    return 1 / int(np.mean(y_true == y_pred) < 0.3)


def in_place(y_true: NDArray[Any], y_pred: NDArray[Any]) -> float:
    """Change what is also the loss's and the other metrics'."""
    y_true[y_true > 1] = 1
    return float(np.mean(y_true == y_pred))


def tensors_in_place(preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Likewise of tensors, which cannot be read-only."""
    return (preds.zero_() + target.zero_()[:, None]).float().sum()


def nothing(y_true: NDArray[Any]) -> float:
    return 0.0


def loss(y_true: NDArray[Any], y_pred: NDArray[Any]) -> float:
    return 0.0


def outputs_of(run: Run) -> tuple[NDArray[Any], torch.Tensor]:
    """The targets of a run's test set, and the outputs of its exported model."""
    x, targets = Federation.of(run.settings).data.test
    with torch.no_grad():
        return targets, run.model()(torch.from_numpy(x))


def by_hand(run: Run) -> dict[str, float]:
    """What scikit-learn computes of SPECS."""
    targets, outputs = outputs_of(run)
    shares, labels = outputs.softmax(-1).numpy(), outputs.argmax(-1).numpy()
    found = (
        scikit.f1_score(targets, labels, average="macro"),
        scikit.roc_auc_score(targets, shares, multi_class="ovr"),
        scikit.log_loss(targets, shares),
        np.mean(labels[targets == 4] != 4),
    )
    return dict(zip(KEYS, map(float, found), strict=True))


RUNS = {"rounds": {"trace": "bernoulli:p=0.7"}, "event time": {"trace": "phones:cost=30", "round_ends": 2}}


@pytest.mark.parametrize("run", RUNS)
def test_the_values_are_those_of_scikit_learn(run: str, tmp_path: Path) -> None:
    done = fedtide.run(**SMALL, **RUNS[run], engine="inline", run_dir=tmp_path, progress=False)
    check_values(done)


@pytest.mark.slow
def test_the_values_are_those_of_scikit_learn_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    done = fedtide.run(**SMALL, trace="always", engine="ray", num_workers=1, run_dir=tmp_path, progress=False)
    check_values(done)


def check_values(run: Run) -> None:
    """Compare the values in all places where they are with those computed by hand."""
    expected = pytest.approx(by_hand(run), rel=1e-5)
    assert {key: run.records[-1][key] for key in KEYS} == expected
    assert {key: run.summary["final"][key] for key in KEYS} == expected
    assert run.metrics[[*KEYS]].iloc[-1].to_dict() == expected
    assert [(m.key, m.higher_is_better, m.is_share) for m in run.measured] == [
        ("accuracy", True, True),
        ("f1_score_macro", True, True),
        ("roc_auc_ovr", True, True),
        ("log_loss", False, False),
        ("missed_4", False, True),
    ]


def test_numbers_are_in_the_unit_of_the_table(tmp_path: Path) -> None:
    """The task standardises the targets: percentages of them would mean nothing."""
    x, y = load_diabetes(return_X_y=True)
    header = ",".join([*(f"x{j}" for j in range(10)), "y"])
    file = tmp_path / "diabetes.csv"
    np.savetxt(file, np.column_stack([x, y]), "%.6g", delimiter=",", header=header, comments="")
    more = {"task": f"csv:file={file},target=y,kind=regression", "trace": "always", "learning_rate": 0.02}
    specs = ("mean_absolute_percentage_error", "r2", "test_metrics.widest")
    more |= {"metrics": specs, "num_rounds": 20, "engine": "inline", "run_dir": tmp_path}
    done = fedtide.run(**SMALL | more, progress=False)
    targets, outputs = outputs_of(done)
    scale = json.loads((done.path / "preprocessing.json").read_text())["target"]
    standardised = (targets, outputs[:, 0].numpy())
    true, predicted = (scale["mean"] + scale["deviation"] * array for array in standardised)
    assert 25 <= true.min() < true.max() <= 346
    final = done.summary["final"]
    error = scikit.mean_absolute_percentage_error(true, predicted)
    assert final["mean_absolute_percentage_error"] == pytest.approx(error, rel=1e-5)
    assert final["r2"] == pytest.approx(scikit.r2_score(true, predicted), rel=1e-5)
    assert final["widest"] == pytest.approx(np.ptp(predicted), rel=1e-5)
    assert final["mean_absolute_error"] == pytest.approx(np.abs(true - predicted).mean(), rel=1e-5)


def two_classes() -> Dataset:
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    return Dataset((x[100:], y[100:]), (x[:100], y[:100]), 2)


def several_labels() -> Dataset:
    x, y = make_multilabel_classification(300, 12, n_classes=4, random_state=0)
    x, y = (x / x.std()).astype(np.float32), y.astype(np.float32)
    return Dataset((x[60:], y[60:]), (x[:60], y[:60]), 4, BinaryCrossEntropy())


def one_label() -> Dataset:
    x, y = load_breast_cancer(return_X_y=True)
    x, y = ((x - x.mean(0)) / x.std(0)).astype(np.float32), y[:, None].astype(np.float32)
    return Dataset((x[100:], y[100:]), (x[:100], y[:100]), 1, BinaryCrossEntropy())


OTHERS: dict[str, tuple[Callable[[], Dataset], dict[str, Callable[..., float]]]] = {
    "two classes": (
        two_classes,
        {
            "roc_auc_score": lambda y, z: scikit.roc_auc_score(y, z.softmax(-1)[:, 1]),
            "f1_score": lambda y, z: scikit.f1_score(y, z.argmax(-1)),
            "brier_score_loss": lambda y, z: scikit.brier_score_loss(y, z.softmax(-1)[:, 1]),
            "log_loss": lambda y, z: scikit.log_loss(y, z.softmax(-1).numpy()),
        },
    ),
    "one label": (
        one_label,
        {
            "roc_auc_score": lambda y, z: scikit.roc_auc_score(y[:, 0], z[:, 0]),
            "log_loss": lambda y, z: scikit.log_loss(y[:, 0], z[:, 0].sigmoid().double()),
            "f1_score": lambda y, z: scikit.f1_score(y[:, 0], z[:, 0] > 0),
        },
    ),
    "several labels": (
        several_labels,
        {
            "f1_score:average=macro": lambda y, z: scikit.f1_score(y, z > 0, average="macro"),
            "roc_auc_score": lambda y, z: scikit.roc_auc_score(y, z.sigmoid()),
            "test_metrics.widest": lambda y, z: float(z.max() - z.min()),
        },
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tasks(name: str, simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = OTHERS[name]
    monkeypatch.setitem(TASKS, "other", lambda: DatasetTask("other", make, "iid", "logistic"))
    run = simulate(task="other", partition="iid", model="", metrics=tuple(expected))
    model, (x, targets) = run.experiment.evaluator.model.module, run.experiment.data.test
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))
    for measure, by_hand in zip(run.experiment.plan.functions, expected.values(), strict=True):
        assert run.records[-1][measure.metric.key] == pytest.approx(by_hand(targets, outputs), rel=1e-5)


def test_positions_of_sequences_are_examples(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_engine_tasks import NextCharacter, characters

    from fedtide.tasks import MODELS

    monkeypatch.setitem(TASKS, "characters", lambda: DatasetTask("characters", characters, "iid", "gru"))
    monkeypatch.setitem(MODELS, "gru", lambda shape, num_outputs: NextCharacter(num_outputs))
    specs = ("accuracy_score", "top_k_accuracy:k=3")
    run = simulate(task="characters", model="gru", partition="iid", metrics=specs)
    last = run.records[-1]
    assert last["accuracy_score"] == pytest.approx(last["accuracy"], rel=1e-6)
    assert last["top_k_accuracy_3"] >= last["accuracy"]


def test_a_class_that_no_test_example_has(simulate: Callable[..., Any], monkeypatch: Any) -> None:
    """The area under its curve is undefined, and the loss is not; scikit-learn alone would refuse both."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype(np.float32), np.arange(90) % 3
    known = y[:60] < 2
    task = fedtide.Task.from_arrays(x[60:], y[60:], test=(x[:60][known], y[:60][known]))
    monkeypatch.setitem(TASKS, "own", lambda: task)
    specs = ("roc_auc:multi_class=ovr", "log_loss")
    run = simulate(task="own", partition="iid", trace="always", metrics=specs)
    assert all(math.isnan(record["roc_auc_ovr"]) for record in run.records)
    assert run.records[-1]["log_loss"] == pytest.approx(run.records[-1]["loss"], rel=1e-5)


def test_outputs_of_16_bits() -> None:
    outputs, targets = torch.tensor([[0.0, 1.0], [3.0, 1.0]], dtype=torch.bfloat16), torch.tensor([1, 0])
    wanted: tuple[View, ...] = ("labels", "probabilities")
    views = {view: view_of(view, CROSS_ENTROPY, outputs, targets) for view in wanted}
    assert views["labels"].tolist() == [1, 0]
    np.testing.assert_allclose(views["probabilities"], [0.731, 0.119], atol=1e-3)


def test_tensors_for_torchmetrics(simulate: Callable[..., Any]) -> None:
    run = simulate(metrics=("test_metrics.of_tensors",))
    assert run.records[-1]["of_tensors"] == pytest.approx(run.records[-1]["accuracy"], abs=1e-6)


def test_a_metric_without_a_value_is_null_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What scikit-learn warns of, what fails later in the run, and all of a model that has diverged."""
    flags = ["--num-clients=4", "--num-rounds=4", "--engine=inline", "--no-report", "--partition=iid"]
    specs = ["--metrics", "precision:average=macro", "test_metrics.changing"]
    assert sim.main([*flags, *specs, "--trace=always", f"--run-dir={tmp_path / 'a'}"]) == 0
    out = capsys.readouterr().out
    assert out.count("precision_macro has no value in round 0: Precision is ill-defined") == 1
    assert out.count("changing has no value in round ") == 1
    assert "ZeroDivisionError" in out
    assert "(test_metrics.py, line " in out
    records = [*records_in(next((tmp_path / "a").iterdir()))]
    assert records[0]["precision_macro"] is None
    assert records[-1]["changing"] is None
    assert records[-1]["accuracy"] > 0.3


def test_a_model_that_has_diverged_has_no_metrics(simulate: Callable[..., Any]) -> None:
    run = simulate(metrics=SPECS, trace="always")
    evaluator, said = run.experiment.evaluator, list[str]()
    evaluator.say = said.append
    _, measured = evaluator(1, [np.full_like(a, np.nan) for a in run.experiment.initial.arrays()], {})
    assert all(math.isnan(measured[key]) for key in KEYS)
    assert not said


SPEC_FLAGS = ["--metrics", *SPECS]
WRONG = {
    "f1_score": "metrics f1_score: ValueError: Target is multiclass but average='binary'",
    "f1_scor:average=macro": "metrics: unknown metric 'f1_scor'; known: accuracy_score, ",
    "f1_score:averge=macro": "has no option 'averge'; known: pos_label, average, zero_division; did you",
    "fbeta_score:average=macro": "metrics fbeta_score needs the option beta",
    "f1_score:average=": "metrics 'f1_score:average=': 'average=' at character 10 is not key=value",
    "r2:better=up": "metrics r2:better=up: better is 'up'; it must be higher or lower",
    "accuracy": "metrics accuracy: the task reports its accuracy anyway; leave it out",
    "log_loss log_loss": "metrics: log_loss and log_loss are both recorded as log_loss",
    "test_metrics.loss": "metrics test_metrics.loss: records have a 'loss' of their own; rename the function",
    "test_metrics.nothing": "takes y_true; it has to take (y_true, y_pred)",
    "test_metrics.nobody": "has no 'nobody'",
    "recall:average=none": "metrics recall:average=none: ",
    "numpy.vstack": "metrics numpy.vstack ",
    "test_metrics.outputs_of": "metrics test_metrics.outputs_of ",
    "test_metrics.in_place": "assignment destination is read-only (test_metrics.py, line ",
}


@pytest.mark.parametrize("specs", WRONG)
def test_what_is_wrong_is_one_line(specs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sim.main(["--num-rounds=1", f"--run-dir={tmp_path}", "--metrics", *specs.split()])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG[specs] in line
    assert not [*tmp_path.iterdir()]


def test_memory_is_refused_or_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million examples and 1,000 classes: predicted labels fit, probabilities may not."""
    monkeypatch.setattr(memory, "total_memory", lambda: 16 * 2**30)
    monkeypatch.setattr(memory_check, "replies_limit", lambda: 2 * 2**30)
    assert check_metrics(1_000_000, 1000, {"labels"}) == ""
    assert check_metrics(1_000_000, 10, {"labels", "probabilities"}) == ""
    assert "take up to 3.4 GB at each evaluation" in check_metrics(1_000_000, 100, {"probabilities"})
    with pytest.raises(
        SettingsError, match=r"that needs 33.5 GB, but this machine has 16.0 GB; take metrics"
    ):
        check_metrics(1_000_000, 1000, {"probabilities"})


def test_probabilities_of_numbers_are_refused(simulate: Callable[..., Any], monkeypatch: Any) -> None:
    x, y = np.ones((20, 2), np.float32), np.arange(20, dtype=np.float32)
    monkeypatch.setitem(TASKS, "own", lambda: fedtide.Task.from_arrays(x, y))
    with pytest.raises(SettingsError, match="metrics roc_auc: it takes probabilities, and the task predicts"):
        simulate(task="own", partition="iid", metrics=("roc_auc",))


def test_runs_stop_and_are_compared_by_them(tmp_path: Path) -> None:
    flags = ["--num-clients=4", "--num-rounds=12", "--client-gpus=0", "--num-workers=1", "--no-report"]
    stop = [*SPEC_FLAGS, "--stop-at=f1_score_macro=0.6", f"--run-dir={tmp_path / 'a'}"]
    assert sim.main([*flags, "--engine=inline", *stop]) == 0
    (summary,) = (tmp_path / "a").glob("*/summary.json")
    content = json.loads(summary.read_text())
    assert content["stopped"].startswith("stop-at: f1 score macro 0.")
    assert 0 < content["rounds"] < 12
    table = fedtide.compare(
        **SMALL | {"num_rounds": 6},
        strategy=["fedavg", "scheme-c"],
        trace="always",
        reach="f1_score_macro=0.3",
        num_workers=1,
        run_dir=tmp_path / "b",
        progress=False,
    )
    by_key = {metric.key: value.mean for metric, value in table.rows[0].others.items()}
    assert by_key == pytest.approx(by_hand(table.rows[0].runs[0].run), rel=1e-5)
    texts = {name: (table.folder / f"table.{name}").read_text() for name in ("csv", "md", "tex")}
    assert "f1_score_macro,f1_score_macro_deviation" in texts["csv"]
    assert "rounds_to_f1_score_macro=0.3" in texts["csv"]
    assert "| f1 score macro % |" in texts["md"]
    assert "| log loss |" in texts["md"]
    assert r"f1 score macro \%" in texts["tex"]
    assert all(cost is not None for cost in table.rows[0].reached[table.rows[0].reach[0]])


def test_a_metric_that_changes_its_tensors_changes_no_other_number(simulate: Callable[..., Any]) -> None:
    alone, beside = (
        simulate(task="digits", num_rounds=1, metrics=specs).records[-1]
        for specs in (["log_loss"], ["test_metrics.tensors_in_place", "log_loss"])
    )
    assert {key: beside[key] for key in ("loss", "accuracy", "log_loss")} == {
        key: alone[key] for key in ("loss", "accuracy", "log_loss")
    }


def test_an_object_is_named_by_its_function(tmp_path: Path) -> None:
    def median(y_true: NDArray[Any], y_score: NDArray[Any]) -> float:
        return float(np.median(y_score))

    few = {"engine": "inline", "run_dir": tmp_path, "progress": False}
    for metric in (median, [median, "log_loss"]):
        done = fedtide.run(**SMALL | {"metrics": metric}, **few)
        assert [m.key for m in done.measured][:2] == ["accuracy", "median"]
        assert 0 < done.records[-1]["median"] < 0.1
    macro = partial(scikit.f1_score, average="macro")  # which has no name
    done = fedtide.run(**SMALL | {"metrics": [macro, "f1_score:average=macro"]}, **few)
    assert (key := done.measured[1].key).startswith("partial")
    assert done.records[-1][key] == done.records[-1]["f1_score_macro"]
    with pytest.raises(SettingsError, match="metrics: median and median are both recorded as median"):
        fedtide.run(**SMALL | {"metrics": [median, median]}, **few)


names = st.sampled_from(["f1_score", "a.b", "log_loss"])
options = st.dictionaries(st.sampled_from(["average", "k", "x-y"]), st.sampled_from(["1", "macro", "-0.5"]))


@given(st.lists(st.tuples(names, options)))
def test_commas_separate_specs_and_options(parts: Sequence[tuple[str, dict[str, str]]]) -> None:
    specs = [
        ":".join(filter(None, [name, ",".join(f"{k}={v}" for k, v in own.items())])) for name, own in parts
    ]
    assert split_specs(",".join(specs)) == specs
    assert Settings.from_mapping({"metrics": ",".join(specs)}, "here").metrics == tuple(specs)
    assert Settings.from_mapping({"metrics": specs}, "here").metrics == tuple(specs)


@given(st.text() | st.from_regex(r"f1_score:[a-z=,1.]{0,20}", fullmatch=True))
def test_any_text_is_a_metric_or_an_error_of_settings(text: str) -> None:
    with suppress(SettingsError):
        metric_functions(split_specs(text))


def test_every_metric_of_the_list_can_be_taken() -> None:
    needed = {"fbeta_score": "fbeta_score:beta=2"}
    for name in SCIKIT_LEARN:
        found = MetricFunction.of(needed.get(name, name))
        lower = name.endswith(("_loss", "_error", "_deviance", "perplexity"))
        assert found.metric.higher_is_better is not lower
        assert found.metric.key not in RECORDED


def test_no_key_of_records_can_be_taken() -> None:
    keys = {key for key in described("metrics.jsonl") | described("On devices") if "." not in key}
    keys |= {key.removeprefix("final.") for key in described("summary.json") if key.startswith("final.")}
    assert {key for key in keys if not key.startswith(OF_CLIENTS)} - {"accuracy", "names"} <= RECORDED


def test_perplexity_is_the_exponential_of_the_loss() -> None:
    run = fedtide.run(**SMALL | {"metrics": "perplexity"})
    assert run.records[-1]["perplexity"] == pytest.approx(np.exp(run.records[-1]["loss"]), rel=1e-5)
