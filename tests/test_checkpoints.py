"""Checkpoints: whole or named as damaged, and no larger than what has changed."""

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import in_memory, same_state, stored
from flwr.common import ndarrays_to_parameters
from flwr.server.strategy import FedAvgM, Strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_run_folder import no_file_above

import sim
from fedtide.config import Settings
from fedtide.engine.checkpoints.store import FILE, CheckpointStore
from fedtide.engine.run import simulate
from fedtide.engine.run_folder import RunFolder
from fedtide.interop.stock_state import Attributes
from fedtide.plan import Plan
from strategies.core.state import Rows

SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--local-steps=4", "--engine=inline"]
SETTINGS = Settings(
    model="logistic", num_clients=4, local_steps=4, num_rounds=6, engine="inline", client_gpus=0.0
)


def rows(versions: dict[int, int], width: int = 5) -> Rows:
    """A vector for each key, which follows from the key and its version."""
    vectors = [np.random.default_rng([k, v]).normal(size=width) for k, v in versions.items()]
    keys, numbers = np.array([*versions], np.int64), np.array([*versions.values()], np.int64)
    return Rows(keys, numbers, vectors)


def loaded(path: Path, without: int = 0) -> Any:
    """What a copy of a folder has, without the newest checkpoints."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(path, copy, dirs_exist_ok=True)
        for newest in saved(path)[::-1][:without]:
            change(Path(copy), "DELETE FROM vectors WHERE name = 'state' AND key = ?", newest)
        folder = CheckpointStore(Path(copy))
        found = folder.load()
        assert found is not None
        found = found._replace(state={name: in_memory(part) for name, part in found.state.items()})
        folder.close()
    return found


def change(path: Path, statement: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path / FILE)) as db, db:
        return db.execute(statement, values).fetchall()


def saved(path: Path) -> list[int]:
    return [number for (number,) in change(path, "SELECT key FROM vectors WHERE name = 'state' ORDER BY key")]


@settings(max_examples=20)
@given(
    changes=st.lists(
        st.tuples(st.dictionaries(st.integers(0, 9), st.integers(1, 3)), st.sampled_from([3, 5])), max_size=6
    )
)
def test_the_last_two_are_what_was_saved(changes: list[Any], tmp_path_factory: Any) -> None:
    """Vectors come, change and go; those of the checkpoint before the last stay."""
    path = tmp_path_factory.mktemp("checkpoints") / "checkpoint"
    folder, states = CheckpointStore(path), []
    for number, (versions, width) in enumerate(changes, start=1):
        part = {key: 10 * number + version for key, version in versions.items()}
        kept = {k: v for k, v in (states[-1][1] if states else {}).items() if k % 3}
        states.append((number, kept | part))
        state = {"a": rows(kept | part), "b": rows(part, width), "w": np.arange(number), "n": number}
        folder.save(number, state)
        assert saved(path) == [s[0] for s in states[-2:]]
    folder.close()
    for without, (number, all_rows) in enumerate(states[:-3:-1]):
        found = loaded(path, without)
        assert found.round == number
        same_state({"a": rows(all_rows), "n": number}, {k: found.state[k] for k in ("a", "n")})


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    """100 vectors of 80 kB, of which ten change from checkpoint to checkpoint; the file grows by ten."""
    folder, versions = CheckpointStore(tmp_path / "c"), dict.fromkeys(range(100), 1)
    sizes = []
    for number in range(1, 10):
        versions |= dict.fromkeys(range(10 * number, 10 * number + 10), number + 1)
        state = {"table": rows(versions, 10_000)}
        assert folder.to_write(state) == (8_000_000 if number == 1 else 800_000)
        folder.save(number, state)
        sizes.append((tmp_path / "c" / FILE).stat().st_size)
    assert sizes[-1] < 1.25 * sizes[0]
    folder.close()


@pytest.mark.parametrize("name", ["state", "rows"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, name: str) -> None:
    folder = CheckpointStore(tmp_path)
    for number in (1, 2):
        folder.save(number, {"rows": rows({7: number, 8: 0}), "w": np.arange(100)})
    folder.close()
    where = f"WHERE name = '{name}' AND (version = 2 OR key = 2)"
    change(tmp_path, f"UPDATE vectors SET data = x'00' {where}")
    found = loaded(tmp_path)
    assert found.round == 1
    (damaged,) = found.damaged
    assert f"the checkpoint of round 2 is damaged: its {name} of " in damaged
    same_state({"rows": rows({7: 1, 8: 0}), "w": np.arange(100)}, found.state)
    folder = CheckpointStore(tmp_path)  # the rounds that are done again have the same versions
    assert folder.load() is not None
    folder.save(2, {"rows": rows({7: 2, 8: 0}), "w": np.arange(100)})
    folder.close()
    assert loaded(tmp_path).round == 2
    change(tmp_path, "UPDATE vectors SET data = x'00'")
    with pytest.raises(ValueError, match=r"round 2 is damaged.*round 1 is damaged"):
        loaded(tmp_path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / f"round-00000006-{32 * '0'}.safetensors").touch()
    with pytest.raises(ValueError, match="earlier version"):
        CheckpointStore(tmp_path).load()
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    with pytest.raises(OSError, match=FILE):
        CheckpointStore(tmp_path).load()


def test_a_large_vector_is_stored_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has a limit of 10^9 bytes."""
    monkeypatch.setattr("fedtide.engine.checkpoints.store.PIECE", 1000)
    folder, state = CheckpointStore(tmp_path), {"rows": rows({0: 1}, 300), "empty": rows({3: 4}, 0)}
    folder.save(1, state)
    folder.close()
    same_state(state, loaded(tmp_path).state)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = CheckpointStore(tmp_path)
    folder.save(1, {"rows": rows({0: 1}), "w": np.zeros(10)})
    size = (tmp_path / FILE).stat().st_size
    with no_file_above(size + 1000), pytest.raises(OSError, match=FILE):
        folder.save(2, {"rows": rows({0: 2}), "w": np.zeros(100_000)})
    assert loaded(tmp_path).round == 1
    folder.save(3, {"rows": rows({0: 3}), "w": np.zeros(10)})
    folder.close()
    assert [loaded(tmp_path).round, loaded(tmp_path, without=1).round] == [3, 1]


# Runs


def run(*arguments: str, capsys: Any) -> Any:
    code = sim.main([*SMALL, *arguments, "--json", "--no-report"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else None, shown.err


def test_a_run_is_extended(tmp_path: Path, capsys: Any) -> None:
    _, whole, _ = run("--num-rounds=6", "--run-dir", str(tmp_path / "a"), capsys=capsys)
    _, first, _ = run("--num-rounds=4", "--run-dir", str(tmp_path / "b"), capsys=capsys)
    for arguments in (["--num-rounds=6"], []):
        code, longer, _ = run("--resume", first["run_dir"], *arguments, capsys=capsys)
        assert (code, longer["rounds"], longer["run_dir"]) == (0, 6, first["run_dir"])
        assert longer["weights_sha256"] == whole["weights_sha256"]
        assert longer["client_fits"] == whole["client_fits"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    simulate(Plan.of(SETTINGS), path)
    return path


@pytest.fixture
def ended(finished: Path, tmp_path: Path) -> Path:
    """A run folder of six rounds, with a checkpoint of the last one."""
    return shutil.copytree(finished, tmp_path / "run")


def refusal(path: Path, *arguments: str, capsys: Any) -> str:
    """The line with which a run is not resumed."""
    with pytest.raises(SystemExit, match="2"):
        sim.main(["--resume", str(path), *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_resumed(ended: Path, tmp_path: Path, capsys: Any) -> None:
    changes = {
        "--strategy=fedavg --seed=3": "seed was 0, not 3; strategy was 'scheme-c', not 'fedavg'",
        "--num-rounds=3": "num-rounds was 6",
        "--seed 1 2": "resume is for",
    }
    for arguments, message in changes.items():
        assert message in refusal(ended, *arguments.split(), capsys=capsys)
    assert "config.toml is missing" in refusal(tmp_path, capsys=capsys)
    first = RunFolder(Plan.of(replace(SETTINGS, resume=str(ended))))
    assert "another process runs in this folder; wait until it has ended" in refusal(ended, capsys=capsys)
    first.close()
    change(ended / "checkpoint", "UPDATE vectors SET data = x'00'")
    assert "round 6 is damaged" in refusal(ended, capsys=capsys)


def test_without_a_checkpoint_the_run_starts_over(ended: Path, capsys: Any) -> None:
    before = json.loads((ended / "summary.json").read_text())
    shutil.rmtree(ended / "checkpoint")
    code, after, shown = run("--resume", str(ended), capsys=capsys)
    assert code == 0
    assert "has no checkpoint: the run starts over" in shown
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len((ended / "metrics.jsonl").read_text().splitlines()) == 7


def test_a_resumed_run_has_not_ended(ended: Path) -> None:
    """Killed before its end, it must not look finished."""
    folder = RunFolder(Plan.of(replace(SETTINGS, resume=str(ended))))
    folder.go_on((10, 0))
    folder.close()
    assert (ended / "metrics.jsonl").stat().st_size == 10
    assert not (ended / "summary.json").exists()


def test_changed_packages_are_named(ended: Path, capsys: Any) -> None:
    config = ended / "config.toml"
    config.write_text(config.read_text().replace('torch = "', 'torch = "0.'))
    _, _, shown = run("--resume", str(ended), capsys=capsys)
    assert "warning: torch was 0." in shown
    assert "the results may differ" in shown


FORGETFUL = """
import numpy as np
from strategies import FlexibleStrategy


class Momentum(FlexibleStrategy):
    saved = ("kept",)

    def setup(self):
        self.m, self.kept, self.beta = np.zeros(self.layout.size), np.zeros(1), 0.9

    def update(self, replies):
        self.m = self.beta * self.m + replies.ordered_sum(np.full(len(replies), 1 / len(replies)))
        self.kept = self.kept + 1
        self.weights += self.m
"""


def test_attributes_that_a_custom_method_does_not_save_are_named(own: Any, capsys: Any) -> None:
    own.write("forgetful.py", FORGETFUL)
    code, _, shown = run("--strategy=forgetful.Momentum", "--num-rounds=3", capsys=capsys)
    assert code == 0
    assert "m of Momentum changes and is not in its `saved`" in shown


class Kept(Strategy):
    """A strategy with attributes of all kinds, which wraps another one."""

    initialize_parameters = configure_fit = aggregate_fit = evaluate = None  # type: ignore[assignment]
    configure_evaluate = aggregate_evaluate = None  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = ndarrays_to_parameters([rng.normal(size=3)])
        self.history = {"loss": [rng.random(), np.float32(rng.random())], 3: (None, rng.normal(size=2))}
        self.rng, self.rule, self.rules = rng, np.mean, [np.mean, {"b": np.max}]
        self.strategy = FedAvgM(initial_parameters=ndarrays_to_parameters([rng.normal(size=2)]))


def test_attributes_of_a_strategy_of_flower(tmp_path: Path) -> None:
    one, other = Kept(1), Kept(2)
    state = Attributes(one)
    one.strategy.momentum_vector = [np.arange(3.0)]  # type: ignore[assignment]
    Attributes(other).load_state_dict(stored(Attributes(one).state_dict()))
    assert (other.weights, other.rule) == (one.weights, np.mean)
    assert other.rules == one.rules
    assert other.strategy.initial_parameters == one.strategy.initial_parameters
    np.testing.assert_array_equal(other.strategy.momentum_vector, [np.arange(3.0)])  # type: ignore[arg-type]
    assert other.history["loss"] == one.history["loss"]
    assert type(other.history["loss"][1]) is np.float32
    np.testing.assert_array_equal(other.history[3][1], one.history[3][1])
    assert other.rng.random() == one.rng.random()
    for late in (np.min, lambda x: x, np.random.default_rng(0), Kept(3)):
        one.rules.append(late)
        with pytest.raises(ValueError, match=r"Kept.rules\[2\] is a .* that it had not when it was made"):
            state.state_dict()
        one.rules.pop()
    one.rule = np.max
    with pytest.raises(ValueError, match=r"Kept\.rule is a"):
        state.state_dict()
    one.rule = np.mean
    one.history["loss"].append({1, 2})
    with pytest.raises(ValueError, match=r"Kept.history\['loss'\]\[2\] is a set, which cannot be saved"):
        Attributes(one).state_dict()
