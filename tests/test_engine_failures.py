"""Clients and workers that fail: the round records the failure, and the run continues."""

import ctypes
import io
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.server.strategy import FedAvg
from rich.console import Console
from test_engine_run_folder import no_file_above

import clients.simulated.virtual
import fedtide
import sim
from clients.memory.spill import Memories
from clients.simulated.virtual import is_out_of_memory
from fedtide.base.spill import SpillFile
from fedtide.config import Settings
from fedtide.engine.evaluation import GlobalEvaluator
from fedtide.engine.transports.base import EngineLost
from fedtide.loggers.progress import final_table
from strategies import Roster
from traces import Always


def unplaced(reason: str) -> str:
    """Return the reason of a failure in this file, without the line."""
    return re.sub(r"\(test_engine_failures.py, line \d+\)$", "HERE", reason)


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
            case "exits":
                sys.exit(7)
            case "interrupts":
                raise KeyboardInterrupt
            case "memory":
                raise MemoryError("of one client")
            case "once" if os.path.exists(self.flag):
                os.remove(self.flag)
                os._exit(1)
            case "segfault":
                ctypes.string_at(0)
            case "hangs" if os.path.exists(self.flag):
                time.sleep(1000)
            case "hangs":
                os._exit(1)
        return x, labels

    def holdout(self, clients: np.ndarray) -> Any:
        if len(clients) == 1 and self.faults.get(int(clients[0])) == "raises":
            raise OSError("the card is full")
        return self.data.holdout(clients)


def broken(faults: dict[int, str], flag: str = "") -> Callable[[Any], Any]:
    return partial(BrokenData, faults=faults, flag=flag)


def test_broken_clients_fail_with_the_reason_in_the_record(simulate: Callable[..., Any]) -> None:
    faults = {1: "labels", 2: "raises", 4: "nan", 6: "exits", 7: "memory"}
    run = simulate(broken(faults), trace="always", num_clients=8)
    assert len(run.rounds) == 3
    for record in run.rounds:
        assert record["selected"] == [*range(8)]
        assert record["active"] == [0, 3, 5]
        assert record["failed"].pop("1").startswith("labels ")
        assert {client: unplaced(why) for client, why in record["failed"].items()} == {
            "2": "OSError: the card is full HERE",
            "4": "weights are not finite",
            "6": "SystemExit: 7 HERE",
            "7": "MemoryError: of one client HERE",
        }
        assert "notes" not in record
    assert np.isfinite(run.weights).all()


class FlagOfRound2(Always):
    """A trace that makes a file in round 2."""

    flag: Path

    def round(self, t: int) -> Any:
        if t == 2:
            self.flag.touch()
        return super().round(t)


def test_the_others_train_as_if_the_broken_client_were_offline(
    simulate: Callable[..., Any], write: Callable[..., str]
) -> None:
    rows = "".join(f"{t},{k},1\n" for t in (1, 2, 3) for k in (0, 1, 3, 4, 5))
    table = write(f"round,client,completion\n{rows}")
    offline = simulate(trace=f"table:file={table}")
    assert all(record["selected"] == [0, 1, 3, 4, 5] for record in offline.rounds)
    for fault in ("raises", "nan"):
        run = simulate(broken({2: fault}), trace="always")
        np.testing.assert_array_equal(run.weights, offline.weights)


@pytest.mark.slow
def test_a_worker_that_dies_once_changes_nothing(
    simulate: Callable[..., Any], ray_cluster: None, tmp_path: Path
) -> None:
    """Its clients are asked again; the other worker goes on while a new one starts."""
    flag = tmp_path / "die"
    flag.touch()
    settings = {"trace": "always", "num_clients": 12, "cohort": "stacked", "strategy": "apfl"}  # with memory
    run = simulate(broken({1: "once"}, str(flag)), **settings, engine="ray", num_workers=2)
    expected = simulate(**settings)
    assert not flag.exists()
    np.testing.assert_array_equal(run.weights, expected.weights)
    assert [record["failed"] for record in run.rounds] == [{}] * 3
    (note,) = run.rounds[0]["notes"]
    # 12 where the other worker's start took longer than the first round waits for it.
    assert re.fullmatch(r"(6|12) clients of one worker: its process died; asked once more, together", note)
    assert not any("notes" in record for record in run.rounds[1:])


@pytest.mark.slow
def test_clients_that_end_or_block_their_process_fail_alone(
    simulate: Callable[..., Any], ray_cluster: None, tmp_path: Path
) -> None:
    """Every round; their neighbours count, as if these clients were offline.

    Client 3 hangs only when it is known to be at fault: then nobody waits for it more than once.
    """
    faults, flag = {1: "segfault", 3: "hangs", 4: "exits", 5: "interrupts"}, tmp_path / "hang"
    settings = {"num_clients": 12, "cohort": "stacked", "num_rounds": 2}
    trace, on_ray = FlagOfRound2(12, 0), {"engine": "ray", "num_workers": 2}
    trace.flag = flag
    run = simulate(broken(faults, str(flag)), trace=trace, **settings, **on_ray, client_timeout=6.0)
    expected = simulate(broken(dict.fromkeys(faults, "raises")), trace="always", **settings)
    np.testing.assert_array_equal(run.weights, expected.weights)
    reasons = {"1": "its process died", "4": "SystemExit: 7 HERE", "5": "KeyboardInterrupt HERE"}
    for record, third in zip(run.rounds, ("its process died", "no result within 6 s"), strict=True):
        assert record["active"] == [0, 2, 6, 7, 8, 9, 10, 11]
        failed = {client: unplaced(why) for client, why in record["failed"].items()}
        assert failed == {**reasons, "3": third}
    assert len(run.rounds[0]["notes"]) >= 2
    assert "notes" not in run.rounds[1]  # who it was is known


def test_too_little_memory_makes_cohorts_smaller_not_the_result_different(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to two clients in one call; said once in the run."""
    settings = {"trace": "always", "num_clients": 16, "cohort": "stacked", "cohort_size": 16}
    expected = simulate(**settings)
    train, sizes = clients.simulated.virtual.train, []

    def scarce(oracle: Any, examples: Any, weights: Any, shared: Any, cohort: Any, *rest: Any) -> Any:
        sizes.append(len(cohort))
        if len(cohort) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(oracle, examples, weights, shared, cohort, *rest)

    monkeypatch.setattr(clients.simulated.virtual, "train", scarce)
    run = simulate(**settings)
    np.testing.assert_array_equal(run.weights, expected.weights)
    assert [record["failed"] for record in run.rounds] == [{}] * 3
    told = [record.get("notes", []) for record in run.rounds]
    assert told == [["not enough memory to train 4 clients in one call: from now on at most 2"], [], []]
    assert sizes[-16:] == [2] * 16  # of two rounds


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError("the card is out of memory"), False),
    ],
)
def test_what_counts_as_too_little_memory(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory


def test_ctrl_c_ends_a_run_in_this_process(simulate: Callable[..., Any]) -> None:
    """Whoever raises it."""
    with pytest.raises(KeyboardInterrupt):
        simulate(broken({2: "interrupts"}))


def test_a_time_limit_is_refused_where_it_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="client-timeout is 5, but engine is inline"):
        Settings(engine="inline", client_timeout=5.0)
    with pytest.raises(ValueError, match="client-timeout: runs of a comparison train in one process each"):
        fedtide.compare(strategy=["fedavg", "mifa"], num_rounds=2, client_timeout=5, num_workers=1)


def test_a_memory_that_cannot_be_stored_or_read_ends_the_run(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client is to blame, and all of them would fail in all rounds."""
    monkeypatch.setattr("fedtide.engine.transports.inline.Memories", partial(Memories, 0))
    with no_file_above(0), pytest.raises(EngineLost, match=r"cannot be stored or read: .*File too large"):
        simulate(strategy="apfl")
    monkeypatch.setattr(SpillFile, "read", _torn)
    with pytest.raises(EngineLost, match=r"cannot be stored or read: .*truncated"):
        simulate(strategy="apfl")


def _torn(*_: Any) -> Any:
    raise OSError("the file has been truncated")


@pytest.mark.slow
def test_a_client_that_cannot_evaluate_is_left_out(simulate: Callable[..., Any], ray_cluster: None) -> None:
    """Flower's own FedAvg, which lets clients evaluate."""
    evaluated: list[list[str]] = []

    class Stock(FedAvg):
        def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
            why = [unplaced(str(failure)) for failure in failures]
            evaluated.append([*sorted(proxy.cid for proxy, _ in results), *why])
            return super().aggregate_evaluate(server_round, results, failures)

    run = simulate(
        broken({2: "raises"}),
        stock=lambda experiment: Stock(initial_parameters=experiment.initial),
        trace="always",
        evaluate_on="objective",
        num_rounds=2,
        engine="ray",
        num_workers=1,
    )
    assert evaluated == [["0", "1", "3", "4", "5", "client 2: OSError: the card is full HERE"]] * 2
    assert all(np.isfinite(record["client_loss"]) for record in run.rounds)


def test_without_members_the_evaluation_on_objective_is_nan(simulate: Callable[..., Any]) -> None:
    experiment = simulate(evaluate_on="objective").experiment
    nobody = Roster(experiment.data.sizes, np.zeros(6, bool))
    arrays = experiment.initial.arrays()
    for on, finite in (("objective", False), ("test", True)):
        settings = replace(experiment.settings, evaluate_on=on, train_loss=True)
        evaluator = GlobalEvaluator(settings, experiment.data, experiment.build_model, nobody)
        loss, metrics = evaluator(1, arrays, {})
        assert np.isfinite([loss, metrics["accuracy"]]).all() == finite
        assert np.isnan(metrics["train-loss"])


@pytest.mark.parametrize(
    "text", ["[link=http://x]here[/link]", "\x1b[2Jgone\n\r", "x" * 10**6], ids=["markup", "control", "long"]
)
def test_texts_of_clients_are_not_trusted(simulate: Callable[..., Any], text: str) -> None:
    """They are neither markup nor control codes, and are short."""

    class Complaining(BrokenData):
        def examples(self, client: int, rows: np.ndarray) -> Any:
            if client:
                raise OSError(text)
            return self.data.examples(client, rows)

    records: list[dict[str, Any]] = simulate(wrap=partial(Complaining, faults={}), num_rounds=1).records
    (reason,) = set(records[1]["failed"].values())
    assert len(reason) <= 200
    assert reason.isprintable()
    file = io.StringIO()
    summary = {"strategy": "[/red]", "task": "digits", "model": "m", "rounds": 1, "client_fits": 0}
    summary |= {"seconds": 1.0, "run_dir": "runs/[/red]", "metrics": [{"name": "accuracy"}]}
    summary |= {"final": {"accuracy": 0.5, "loss": 1.0, "train_loss": 1.0}}
    Console(file=file, width=250).print(final_table(summary, Counter([reason])))
    assert reason.strip() in file.getvalue()
    assert "runs/[/red]" in file.getvalue()


def test_a_run_without_a_reply_that_counts_says_so(tmp_path: Any, write: Any, capsys: Any) -> None:
    rounds = write("round,client,completion\n" + "".join(f"{t},{k},0\n" for t in (1, 2) for k in range(3)))
    flags = ["--num-clients=3", "--num-rounds=2", "--engine=inline", f"--run-dir={tmp_path}"]
    assert sim.main([*flags, f"--trace=table:file={rounds}"]) == 3
    assert "no reply ever counted" in capsys.readouterr().out
    assert sim.main([*flags, f"--trace=table:file={rounds}", "--strategy=sequential-sgd"]) == 0
