"""Groups of clients: of the data, and by how often they take part; their metrics are scikit-learn's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

import fedtide
import sim
from fedtide.base.errors import SettingsError
from fedtide.engine.client_numbers import ClientNumbers
from fedtide.engine.groups import QUARTERS, groups_of, spread
from fedtide.engine.read_run import Run
from fedtide.engine.records import parse_record
from fedtide.federation import Federation
from fedtide.loggers.base import scalars
from fedtide.report.groups import groups_tables
from fedtide.tasks import ACCURACY, BinaryCrossEntropy

WARDS = ("north", "south", "west")
CLIENTS = 16
SMALL: dict[str, Any] = {"num_clients": CLIENTS, "num_rounds": 5, "model": "logistic", "client_gpus": 0.0}
SMALL |= {"trace": "bernoulli:p=0.25", "metrics": ("f1", "roc_auc"), "evaluate_clients": 2}


def table(folder: Path, rows: int = 600) -> str:
    """Write examples of clients in wards; return the task."""
    rng = np.random.default_rng(0)
    client, x = rng.integers(0, CLIENTS, rows), rng.normal(size=(rows, 2))
    y = np.where(x[:, 0] + (client % 3) * x[:, 1] > 0, "yes", "no")
    lines = [
        f"{a:.4f},{b:.4f},{t},c{k:02d},{WARDS[k % 3]}" for (a, b), t, k in zip(x, y, client, strict=True)
    ]
    (folder / "wards.csv").write_text("\n".join(["a,b,y,client,ward", *lines]) + "\n")
    return f"csv:file={folder / 'wards.csv'},target=y,client=client,group=ward"


def by_hand(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    """The metrics of each group, of the exported model on the held-out examples of its clients."""
    data, model = Federation.of(run.settings).data, run.model()
    counts = np.zeros(CLIENTS, int)
    for record in run.records[1:]:
        counts[record["active"]] += 1
    took = counts[counts > 0]
    quarter = np.array([sum(n > edge for edge in np.quantile(took, (0.25, 0.5, 0.75))) for n in counts])
    groups = {("group", ward): np.arange(CLIENTS) % 3 == k for k, ward in enumerate(WARDS)}
    groups["participation", "never took part"] = counts == 0
    groups |= {("participation", name): (quarter == i) & (counts > 0) for i, name in enumerate(QUARTERS)}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (kind, name), mask in groups.items():
        x, y = data.holdout(np.flatnonzero(mask))
        if not len(y):
            continue
        with torch.no_grad():
            shares = model(torch.from_numpy(x)).softmax(1).numpy()
        labels = shares.argmax(1)
        values = {"accuracy": np.mean(labels == y), "f1": f1_score(y, labels)}
        values |= {"roc_auc": roc_auc_score(y, shares[:, 1]), "examples": len(y), "clients": mask.sum()}
        found.setdefault(kind, {})[name] = pytest.approx(
            {key: float(v) for key, v in values.items()}, rel=1e-5
        )
    return found


def check(run: Run) -> None:
    expected = by_hand(run)
    assert len(expected["group"]) == 3
    assert len(expected["participation"]) > 2
    assert run.records[-1]["groups"] == expected
    assert json.loads((run.path / "clients.json").read_text())["groups"] == expected
    assert [t["round"] for t in run.records if "groups" in t] == [0, 2, 4, 5]
    assert run.metrics["groups.group.south.f1"].notna().sum() == 4


@pytest.mark.parametrize("more", [{}, {"trace": "phones:cost=30", "round_ends": 2}], ids=["rounds", "events"])
def test_the_metrics_of_groups_are_those_of_scikit_learn(more: dict[str, Any], tmp_path: Path) -> None:
    settings = SMALL | more | {"task": table(tmp_path), "run_dir": tmp_path / "runs"}
    run = fedtide.run(**settings, engine="inline", progress=False)
    check(run)
    page = (run.path / "report.html").read_text()
    for heading in (
        "Accuracy, %, over clients",
        "Groups of clients",
        "Clients by group",
        "Clients by participation",
    ):
        assert f">{heading}</h2>" in page


@pytest.mark.slow
def test_the_metrics_of_groups_are_those_of_scikit_learn_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    settings = SMALL | {"task": table(tmp_path), "run_dir": tmp_path / "runs", "num_workers": 1}
    check(fedtide.run(**settings, engine="ray", progress=False))


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    settings = SMALL | {"task": table(tmp_path), "engine": "inline", "report": "none", "progress": False}
    whole = fedtide.run(**settings, run_dir=tmp_path / "whole")
    part = fedtide.run(**settings | {"num_rounds": 3}, run_dir=tmp_path / "part")
    again = fedtide.run(resume=part.path, num_rounds=5, progress=False)
    assert again.records[-1]["groups"] == whole.records[-1]["groups"]


def test_arrays_have_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    client = rng.integers(0, 6, 240)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    task = fedtide.Task.from_arrays(x, (x[:, 0] > 0).astype(int), clients=client, groups=client // 2)
    settings = {"num_clients": 6, "num_rounds": 1, "engine": "inline", "run_dir": tmp_path, "progress": False}
    run = fedtide.run(task=task, trace="always", evaluate_on="everybody", **settings)
    assert "groups" not in run.records[-1]  # whose curves cost time
    groups = json.loads((run.path / "clients.json").read_text())["groups"]["group"]
    assert {name: group["clients"] for name, group in groups.items()} == {"0": 2, "1": 2, "2": 2}


def test_wrong_groups_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = table(tmp_path)
    wrong = {
        task.replace(",client=client", ""): "group=ward is a group of clients: add client=COLUMN",
        task.replace("group=ward", "group=y"): "column 'y' (target) is taken by group",
        task.replace("group=ward", "group=a,drop=ward"): "groups; at most 100",
        task.replace("group=ward", "group=wrad"): "there is no column 'wrad' (group); columns: a, b, y, ward",
    }
    for spec, says in wrong.items():
        with pytest.raises(SystemExit):
            sim.main([f"--task={spec}", f"--num-clients={CLIENTS}", f"--run-dir={tmp_path / 'runs'}"])
        assert says in capsys.readouterr().err
    x, y, clients = np.ones((4, 2)), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    with pytest.raises(SettingsError, match="groups are groups of clients: give clients, too"):
        fedtide.Task.from_arrays(x, y, groups=clients)
    task_of = fedtide.Task.from_arrays(x, y, clients=clients, groups=["a", "b", "a", "a"], test=(x, y))
    with pytest.raises(SettingsError, match="groups: client 0 has several groups, such as a, b"):
        fedtide.run(task=task_of, num_clients=2, run_dir=tmp_path, progress=False)
    for missing in (None, np.nan, "", 1):
        with pytest.raises(SettingsError, match="whole numbers or names, and none may be missing"):
            fedtide.Task.from_arrays(x, y, clients=clients, groups=np.array(["a", "a", missing, "a"], object))
    with pytest.raises(SettingsError, match="criterion must be a Criterion object"):
        fedtide.Task.from_arrays(x, y, criterion=BinaryCrossEntropy)  # type: ignore[arg-type]
    for wrong_groups in ('{"participation": 1}', '{"participation": {"a": {"x": "y"}}}', "[]"):
        with pytest.raises(ValueError, match=r"groups of round 1 is .* not an object of groups"):
            parse_record(b'{"round": 1, "groups": %s}' % wrong_groups.encode())


def test_quarters_stay_in_order_where_a_seed_lacks_one() -> None:
    def numbers(*names: str) -> ClientNumbers:
        groups = {"participation": {name: {"clients": 2, "examples": 4, "accuracy": 0.5} for name in names}}
        return ClientNumbers([], [], [], [], [], "accuracy", True, [], "", [], {"mean": 0.5}, groups)

    seeds = [numbers("never took part", *QUARTERS[2:]), numbers(*QUARTERS[:2])]
    (_, spread_table), (_, table) = groups_tables({"fedavg": seeds}, [ACCURACY])
    assert spread_table.rows == [["50.00", "", "", "", ""]]
    assert [row[1] for row in table.rows] == ["never took part", *QUARTERS]


def test_loggers_get_names_that_they_allow() -> None:
    record = {"round": 1, "groups": {"group": {'Süd "#1"': {"f1": 0.5, "auc": None}}}}
    assert scalars(record) == {"groups/group/Süd __1_/f1": 0.5}


def test_quarters_of_participation(tmp_path: Path) -> None:
    """Clients that took part equally often are in one quarter."""
    data: Any = object()
    counts = np.array([0, 1, 1, 1, 2, 3, 4, 8, 9])
    groups = groups_of(data, counts)["participation"]
    assert [counts[groups[name]].tolist() for name in QUARTERS] == [[1, 1, 1], [2], [3, 4], [8, 9]]
    assert groups["never took part"].tolist() == [True] + [False] * 8
    assert groups_of(data, np.zeros(3, int))["participation"]["never took part"].all()


def test_the_spread_over_clients() -> None:
    scores = np.array([0.2, 0.4, 0.6, 0.8])
    found = spread(scores, higher_is_better=True)
    assert found == pytest.approx(
        {
            "mean": 0.5,
            "deviation": np.sqrt(0.05),
            "worst": 0.2,
            "tenth_percentile": 0.26,
            "jain_index": 4 / (4 * 1.2),
        }
    )
    assert spread(scores, higher_is_better=False)["worst"] == 0.8
    assert spread(np.array([0.3, 0.3]), higher_is_better=True)["jain_index"] == pytest.approx(1)
    assert spread(np.array([]), higher_is_better=True) == {}
