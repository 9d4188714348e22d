"""Clients and workers that fail: the round records the failure, and the run continues."""

import io
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.server.strategy import FedAvg
from rich.console import Console

import sim
from flexfl.engine.evaluation import GlobalEvaluator
from flexfl.engine.progress import final_table
from strategies import Roster
from traces import Always

ALL = list(range(6))


class BrokenData:
    """Data that some clients cannot use; actors import this class from this module."""

    def __init__(self, data: Any, faults: dict[int, str], flag: str = "") -> None:
        self.data, self.faults, self.flag = data, faults, flag

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # during unpickling
            raise AttributeError(name)
        return getattr(self.data, name)

    def examples(self, client: int, rows: np.ndarray) -> Any:
        x, labels = self.data.examples(client, rows)
        match self.faults.get(client):
            case "raises":
                raise OSError("the card is full")
            case "labels":
                return x, labels + 100
            case "nan":
                return x * np.float32("nan"), labels
            case "dies" if os.path.exists(self.flag):  # once
                os.remove(self.flag)
                os._exit(1)
        return x, labels

    def holdout(self, clients: np.ndarray) -> Any:
        if len(clients) == 1 and self.faults.get(int(clients[0])) == "raises":
            raise OSError("the card is full")
        return self.data.holdout(clients)


def broken(faults: dict[int, str], flag: str = "") -> Callable[[Any], Any]:
    return partial(BrokenData, faults=faults, flag=flag)


ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"engine": "ray", "num_workers": 2}, id="ray", marks=pytest.mark.slow),
]


@pytest.fixture
def cluster_if_needed(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["engine"]:
        request.getfixturevalue("ray_cluster")


@pytest.mark.usefixtures("cluster_if_needed")
@pytest.mark.parametrize("engine", ENGINES)
def test_broken_clients_fail_with_the_reason_in_the_record(
    simulate: Callable[..., Any], engine: dict
) -> None:
    run = simulate(broken({1: "labels", 2: "raises", 4: "nan"}), trace="always", **engine)
    assert len(run.rounds) == 3
    for record in run.rounds:
        assert record["selected"] == ALL
        assert record["active"] == [0, 3, 5]
        assert list(record["failed"]) == ["1", "2", "4"]
        assert record["failed"]["1"].startswith("ValueError: labels ")
        assert record["failed"]["2"] == "OSError: the card is full"
        assert record["failed"]["4"] == "weights are not finite"
    assert np.isfinite(run.weights).all()


class Without:
    """A trace in which one client is always offline."""

    def __init__(self, trace: Any, client: int) -> None:
        self.trace, self.client = trace, client

    def round(self, t: int) -> Any:
        now = self.trace.round(t)
        now.online[self.client], now.completion[self.client] = False, 0
        return now


def test_the_others_train_as_if_the_broken_client_were_offline(simulate: Callable[..., Any]) -> None:
    offline = simulate(trace=Without(Always(6, 0), 2))
    assert all(record["selected"] == [0, 1, 3, 4, 5] for record in offline.rounds)
    for fault in ("raises", "nan"):
        run = simulate(broken({2: fault}), trace="always")
        np.testing.assert_array_equal(run.weights, offline.weights)


@pytest.mark.slow
def test_a_dead_worker_fails_its_clients_once(
    simulate: Callable[..., Any], ray_cluster: None, tmp_path: Path
) -> None:
    flag = tmp_path / "die"
    flag.touch()
    run = simulate(broken({1: "dies"}, str(flag)), trace="always", engine="ray", num_workers=2, num_rounds=4)
    first, *later = run.rounds
    assert not flag.exists()
    assert "1" in first["failed"]
    assert set(first["failed"].values()) == {"worker failed: ActorDiedError"}
    assert sorted([*first["active"], *map(int, first["failed"])]) == ALL
    assert first["active"]  # the clients of the other worker
    for record in later:
        assert (record["active"], record["failed"]) == (ALL, {})


@pytest.mark.usefixtures("cluster_if_needed")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_cannot_evaluate_is_left_out(simulate: Callable[..., Any], engine: dict) -> None:
    """Flower's own FedAvg, which lets clients evaluate."""
    evaluated: list[list[str]] = []

    class Stock(FedAvg):
        def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
            evaluated.append([*sorted(proxy.cid for proxy, _ in results), *map(str, failures)])
            return super().aggregate_evaluate(server_round, results, failures)

    run = simulate(
        broken({2: "raises"}),
        stock=lambda experiment: Stock(initial_parameters=experiment.initial),
        trace="always",
        evaluate_on="objective",
        num_rounds=2,
        **engine,
    )
    assert evaluated == [["0", "1", "3", "4", "5", "client 2: OSError: the card is full"]] * 2
    assert all(np.isfinite(record["client_loss"]) for record in run.rounds)


def test_without_members_the_evaluation_on_objective_is_nan(simulate: Callable[..., Any]) -> None:
    experiment = simulate(evaluate_on="objective").experiment
    nobody = Roster(experiment.data.sizes, np.zeros(6, bool))
    arrays = experiment.initial.arrays()
    for on, finite in (("objective", False), ("test", True)):
        evaluator = GlobalEvaluator(experiment.data, experiment.build_model, nobody, on, train_loss=True)
        loss, metrics = evaluator(1, arrays, {})
        assert np.isfinite([loss, metrics["accuracy"]]).all() == finite
        assert np.isnan(metrics["train-loss"])


TEXTS = ["[/dev/mmcblk0p1] read error", "[link=http://x]here[/link]", "\x1b[2Jgone\n\r", "x" * 10**6]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_clients_are_not_trusted(simulate: Callable[..., Any], text: str) -> None:
    """They are neither markup nor control codes, and are short."""

    class Complaining(BrokenData):
        def examples(self, client: int, rows: np.ndarray) -> Any:
            raise OSError(text)

    records: list[dict[str, Any]] = simulate(wrap=partial(Complaining, faults={}), num_rounds=1).records
    (reason,) = set(records[1]["failed"].values())
    assert len(reason) <= 200
    assert reason.isprintable()
    file = io.StringIO()
    summary = {"strategy": "[/red]", "task": "digits", "model": "m", "rounds": 1, "client_fits": 0}
    summary |= {
        "seconds": 1.0,
        "final": {"accuracy": 0.5, "loss": 1.0, "train_loss": 1.0},
        "run_dir": "runs/[/red]",
    }
    table = final_table(summary | {"metric": {"name": "accuracy"}}, Counter([reason]))
    Console(file=file, width=250).print(table)
    assert reason.strip() in file.getvalue()
    assert "runs/[/red]" in file.getvalue()


def test_a_run_without_a_reply_that_counts_says_so(tmp_path: Any, write: Any, capsys: Any) -> None:
    rounds = write("round,client,completion\n" + "".join(f"{t},{k},0\n" for t in (1, 2) for k in range(3)))
    flags = ["--num-clients=3", "--num-rounds=2", "--engine=inline", f"--run-dir={tmp_path}"]
    assert sim.main([*flags, f"--trace=table:file={rounds}"]) == 3
    assert "no reply ever counted" in capsys.readouterr().out
    assert sim.main([*flags, f"--trace=table:file={rounds}", "--strategy=sequential-sgd"]) == 0
