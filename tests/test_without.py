"""Runs without some of their clients: the same bits as if these had never come."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtide.api.without import main, replay
from fedtide.config import Settings
from fedtide.engine.read_run import Run, read_run
from fedtide.engine.run import simulate
from fedtide.plan import Plan
from fedtide.tasks.texts import TABLE as TWEETS

SMALL: dict[str, Any] = {"model": "logistic", "engine": "inline", "num_clients": 8, "local_steps": 3}
SMALL |= {"client_gpus": 0.0, "cohort": "stacked", "report": "none"}
TABLE = "who,age,ward,sick\n" + "".join(
    f"{'abcdef'[k % 6]},{k * 7 % 50},{'xyz'[k % 4 % 3]},{k * k % 7 % 2}\n" for k in range(120)
)


def train(tmp_path: Path, **changes: Any) -> Run:
    settings = Settings(**{**SMALL, "run_dir": str(tmp_path), **changes})
    _, folder, _ = simulate(Plan.of(settings))
    return read_run(folder.path, records=True)


def told(run: Run) -> list[dict[str, Any]]:
    """The records, without times on the wall clock."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in run.records]


EVENT_TIME = {"round_ends": 1, "trace": "speeds:spread=1", "num_rounds": 17}


@pytest.mark.parametrize(
    ("changes", "clients", "never", "replayed"),
    [
        (
            {"strategy": "scheme-c:reboot=auto", "clients_per_round": 3},
            [0, 5],
            {"arrivals": "0=never,5=never"},
            12,
        ),
        (
            {"strategy": "mifa", "arrivals": "5=11,2=3", "departures": "5=12", "clients_per_round": 3},
            [5],
            {"arrivals": "5=never,2=3", "departures": ""},
            3,
        ),
        (
            {"strategy": "mimic:memory=client", "arrivals": "5-6=11", "departures": "1=4"},
            [5, 6],
            {"arrivals": "5-6=never"},
            3,
        ),
        (
            {"strategy": "scaffold", "arrivals": "5=11", "evaluate_on": "everybody"},
            [5],
            {"arrivals": "5=never"},
            12,  # the test set has its examples from the beginning
        ),
        (
            {**EVENT_TIME, "strategy": "fedbuff:buffer=2,rescale=true", "arrivals": "4=11"},
            [4],
            {"arrivals": "4=never"},
            8,
        ),
        (
            {
                **EVENT_TIME,
                "strategy": "fedvarp",
                "arrivals": "5=6.5s",
                "select": "oort",
                "clients_per_round": 4,
            },
            [5],
            {"arrivals": "5=never"},
            8,
        ),
    ],
)
def test_the_same_bits_as_if_they_had_never_come(
    changes: dict[str, Any], clients: list[int], never: dict[str, str], replayed: int, tmp_path: Path
) -> None:
    """Also from a checkpoint, of which the last two are kept: that of round 9, and the last."""
    changes = {"num_rounds": 12, "checkpoint_every": 9, "trace": "bernoulli:p=0.8", **changes}
    run, scratch = train(tmp_path, **changes), train(tmp_path, **{**changes, **never})
    found = replay(run, clients, tmp_path, progress=False)
    again = read_run(Path(found.run_dir), records=True)
    assert found.replayed == replayed
    assert again.summary["weights_sha256"] == scratch.summary["weights_sha256"]
    assert again.summary["weights_sha256"] != run.summary["weights_sha256"]
    assert told(again) == told(scratch)
    assert not any(client in record.get("selected", ()) for record in again.records for client in clients)
    old, new = (np.concatenate([np.ravel(a) for a in one.weights]).astype(float) for one in (run, scratch))
    assert found.distance == pytest.approx(np.linalg.norm(old - new))


def test_their_examples_are_nowhere(write: Callable[..., str], tmp_path: Path) -> None:
    """Not in the means by which numbers are scaled, nor in shares: others of theirs change nothing."""
    weights = []
    for older in (0, 1000):
        rows = TABLE.splitlines()
        changed = [
            row if not row.startswith("b") else row.replace(",", f",{older}", 1) if older else row
            for row in rows
        ]
        file = write("\n".join(changed) + "\n", name=f"{older}.csv")
        task = f"csv:file={file},target=sick,client=who,categories=ward"
        run = train(tmp_path, task=task, num_clients=6, num_rounds=5, trace="always", strategy="mifa")
        found = replay(run, [1], tmp_path, progress=False)
        assert found.replayed == 5
        weights.append((run, read_run(Path(found.run_dir))))
    (first, without), (second, again) = weights
    assert first.summary["weights_sha256"] != second.summary["weights_sha256"]
    assert without.summary["weights_sha256"] == again.summary["weights_sha256"]
    assert not np.isnan(found.after.their_loss)


def test_their_words_are_nowhere(tmp_path: Path) -> None:
    """The vocabulary changes with them, so that weights of rounds before they came are of other words."""
    file = tmp_path / "sentiment140" / TWEETS
    file.parent.mkdir()
    said = {"ann": "a fine day", "bob": "a bad day", "cid": "oh no no no"}
    form = '"{}","{}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{}","{} {}"\n'
    lines = (form.format(4 * (k % 2), k, user, said[user], k) for user in said for k in range(10))
    file.write_text("".join(lines), encoding="latin-1")
    changes: dict[str, Any] = {
        "task": "sentiment140:min-tweets=3",
        "model": "lstm:hidden=4",
        "num_clients": 3,
    }
    changes |= {
        "data_dir": str(tmp_path),
        "num_rounds": 6,
        "checkpoint_every": 4,
        "trace": "always",
        "cohort": "loop",
    }
    run, scratch = (train(tmp_path, **changes, arrivals=f"2={when}") for when in ("5", "never"))
    found = replay(run, [2], tmp_path, progress=False)
    assert found.replayed == 6
    again = read_run(Path(found.run_dir))
    assert again.summary["weights_sha256"] == scratch.summary["weights_sha256"]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, num_rounds=4, trace="always", strategy="fedavg", until_seconds=1e6)
    assert main([str(run.path), "--clients", "2,6-7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clients"] == [2, 6, 7]
    assert (found["rounds"], found["replayed"]) == (4, 4)
    assert not read_run(Path(found["run_dir"])).settings.until_seconds  # a slower machine would end earlier
    assert main([str(run.path), "--clients", "2", "--run-dir", str(tmp_path / "there")]) == 0
    shown = capsys.readouterr()
    assert "accuracy on their examples" in shown.out
    assert "starts over" not in shown.out + shown.err
    assert [*(tmp_path / "there").iterdir()]


@pytest.mark.parametrize(
    ("changes", "clients", "words"),
    [
        ({}, "9", "has no client '9'"),
        ({}, "0-7", "nobody would be left"),
        ({}, "3,7-5", "5-7"),
        ({"arrivals": "3=never"}, "3", "none of these clients came"),
        ({"until_seconds": 1e-9}, "3", "by the wall clock"),
        ({"task": "test_without.Own"}, "3", "from clients that never come as well"),
    ],
)
def test_what_cannot_be_replayed(
    changes: dict[str, Any],
    clients: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = train(tmp_path, **{"num_rounds": 2, "trace": "always", **changes})
    assert main([str(run.path), "--clients", clients, "--trust"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_runs_that_are_not_whole(tmp_path: Path) -> None:
    run = train(tmp_path, num_rounds=2, trace="always")
    with pytest.raises(ValueError, match="resume it first"):
        replay(replace(run, summary={}), [1], tmp_path)
    with pytest.raises(ValueError, match="under `flwr run`"):
        replay(replace(run, config={**run.config, "flower-run": "7"}), [1], tmp_path)


class Own:
    """A task whose clients may depend on each other."""

    default_partition = None
    default_model = "logistic"

    def federate(self, num_clients: int, *rest: Any) -> Any:
        from fedtide.tasks import Synthetic

        return Synthetic().federate(num_clients, *rest)
