"""Checkpoints on disk: whole or told to be damaged, and no larger than what has changed."""

import json
import shutil
import tempfile
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
from flexfl.config import Settings
from flexfl.engine.checkpoints.folder import CheckpointFolder
from flexfl.engine.run import simulate
from flexfl.engine.run_folder import RunFolder
from flexfl.interop.stock_state import Attributes
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
        for newest in sorted(Path(copy).glob("round-*"))[::-1][:without]:
            newest.unlink()
        folder = CheckpointFolder(Path(copy))
        found = folder.load()
        assert found is not None
        found = found._replace(state={name: in_memory(part) for name, part in found.state.items()})
        folder.close()
    return found


@settings(max_examples=40)
@given(
    changes=st.lists(
        st.tuples(st.dictionaries(st.integers(0, 9), st.integers(1, 3)), st.sampled_from([3, 5])), max_size=8
    )
)
def test_the_last_two_are_what_was_saved(changes: list[Any], tmp_path_factory: Any) -> None:
    """Vectors come, change and go; the checkpoint before the last stays whole while the last is written."""
    path = tmp_path_factory.mktemp("checkpoints") / "checkpoint"
    folder, states = CheckpointFolder(path), []
    for number, (versions, width) in enumerate(changes, start=1):
        part = {key: 10 * number + version for key, version in versions.items()}
        kept = {k: v for k, v in (states[-1][1] if states else {}).items() if k % 3}
        states.append((number, kept | part))
        state = {"a": rows(kept | part), "b": rows(part, width), "w": np.arange(number), "n": number}
        folder.save(number, state)
        assert [int(p.name.split("-")[1]) for p in sorted(path.glob("round-*"))] == [
            s[0] for s in states[-2:]
        ]
    folder.close()
    for without, (number, all_rows) in enumerate(states[:-3:-1]):
        found = loaded(path, without)
        assert found.round == number
        same_state({"a": rows(all_rows), "n": number}, {k: found.state[k] for k in ("a", "n")})


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    """1,000 vectors of 80 kB, of which ten change from checkpoint to checkpoint: the file grows by twenty."""
    folder, versions = CheckpointFolder(tmp_path / "c"), dict.fromkeys(range(1000), 1)
    sizes = []
    for number in range(1, 30):
        versions |= dict.fromkeys(range(10 * number, 10 * number + 10), number + 1)
        folder.save(number, {"table": rows(versions, 1000)})
        sizes.append((tmp_path / "c" / "rows.bin").stat().st_size // 8000)
    assert sizes[0] == 1000
    assert sizes[-1] == 1020
    folder.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9999])
def test_a_torn_checkpoint_is_told_and_the_one_before_is_used(tmp_path: Path, share: float) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2):
        folder.save(number, {"rows": rows({0: number}), "w": np.arange(100)})
    folder.close()
    newest = max(tmp_path.glob("round-*"))
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    found = loaded(tmp_path)
    assert found.round == 1
    assert found.damaged == ["the checkpoint of round 2 is damaged: it is not complete, or was changed"]
    same_state({"rows": rows({0: 1}), "w": np.arange(100)}, found.state)


def test_a_vector_that_was_changed_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2):
        folder.save(number, {"rows": rows({7: number, 8: 0})})
    folder.close()
    data = bytearray((tmp_path / "rows.bin").read_bytes())
    data[-1] ^= 1  # the last byte is of the vector of 7 in round 2: that of 8 has not been written again
    (tmp_path / "rows.bin").write_bytes(data)
    found = loaded(tmp_path)
    assert (found.round, found.damaged) == (
        1,
        ["the checkpoint of round 2 is damaged: the vector of 7 in rows.bin is damaged"],
    )
    (tmp_path / "rows.bin").write_bytes(data[:40])
    with pytest.raises(ValueError, match=r"round 1 is damaged: vectors beyond the end of rows.bin"):
        loaded(tmp_path)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"rows": rows({0: 1}), "w": np.zeros(10)})
    with no_file_above(2000), pytest.raises(OSError, match="File too large"):
        folder.save(2, {"rows": rows({0: 2}), "w": np.zeros(10_000)})
    with no_file_above(20), pytest.raises(OSError, match="File too large"):
        folder.save(2, {"rows": rows({0: 2}), "w": np.zeros(10)})
    assert not [*tmp_path.glob(".*")]
    folder.save(3, {"rows": rows({0: 3}), "w": np.zeros(10)})
    folder.close()
    assert [loaded(tmp_path).round, loaded(tmp_path, without=1).round] == [3, 1]


# Runs


def run(*arguments: str, capsys: Any) -> Any:
    code = sim.main([*SMALL, *arguments, "--json", "--no-report"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else None, shown.err


def test_a_run_is_made_longer(tmp_path: Path, capsys: Any) -> None:
    _, whole, _ = run("--num-rounds=6", "--run-dir", str(tmp_path / "a"), capsys=capsys)
    _, first, _ = run("--num-rounds=4", "--run-dir", str(tmp_path / "b"), capsys=capsys)
    folder = first["run_dir"]
    code, longer, _ = run("--resume", folder, "--num-rounds=6", capsys=capsys)
    assert (code, longer["rounds"], longer["run_dir"]) == (0, 6, folder)
    assert longer["weights_sha256"] == whole["weights_sha256"]
    assert longer["client_fits"] == whole["client_fits"]
    code, again, _ = run("--resume", folder, capsys=capsys)
    assert (code, again["weights_sha256"]) == (0, whole["weights_sha256"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--strategy=fedavg", "--seed=3"],
            "seed was 0, not 3; strategy was 'scheme-c', not 'fedavg'",
        ),
        (["--num-rounds=3"], "num-rounds was 6, and can only become larger"),
        (["--seed", "1", "2"], "resume belongs to a single run; a comparison goes on by the same command"),
    ],
)
def test_other_settings_are_refused(arguments: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    simulate(SETTINGS, tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        sim.main(["--resume", str(tmp_path / "run"), *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_where_there_is_nothing_to_go_on_with(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        sim.main(["--resume", str(tmp_path)])
    assert "there is no run in this folder: config.toml is missing" in capsys.readouterr().err
    simulate(SETTINGS, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").glob("round-*"):
        path.write_bytes(b"")
    with pytest.raises(SystemExit, match="2"):
        sim.main(["--resume", str(tmp_path / "run")])
    assert "round 6 is damaged" in capsys.readouterr().err


def test_without_a_checkpoint_the_run_begins_again(tmp_path: Path, capsys: Any) -> None:
    simulate(replace(SETTINGS, checkpoint_every=-1), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    before = json.loads((tmp_path / "run" / "summary.json").read_text())
    code, after, shown = run("--resume", str(tmp_path / "run"), capsys=capsys)
    assert code == 0
    assert "has no checkpoint: the run begins again" in shown
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 7


def test_a_run_that_goes_on_has_not_ended(tmp_path: Path) -> None:
    """Killed before its end, it must not look finished."""
    simulate(SETTINGS, tmp_path / "run")
    folder = RunFolder(replace(SETTINGS, resume=str(tmp_path / "run")))
    folder.go_on(10)
    folder.close()
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size == 10
    assert not (tmp_path / "run" / "summary.json").exists()


def test_two_runs_in_one_folder(tmp_path: Path, capsys: Any) -> None:
    simulate(SETTINGS, tmp_path / "run")
    first = RunFolder(replace(SETTINGS, resume=str(tmp_path / "run")))
    with pytest.raises(SystemExit, match="2"):
        sim.main(["--resume", str(tmp_path / "run")])
    assert "another process runs in this folder; wait until it has ended" in capsys.readouterr().err
    first.close()


def test_a_change_of_packages_is_told(tmp_path: Path, capsys: Any) -> None:
    simulate(SETTINGS, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('torch = "', 'torch = "0.'))
    _, _, shown = run("--resume", str(tmp_path / "run"), capsys=capsys)
    assert "warning: torch was 0." in shown
    assert "the numbers may differ from those of an undisturbed run" in shown


FORGETFUL = """
import numpy as np
from strategies import FlexibleStrategy


class Momentum(FlexibleStrategy):
    saved = (*FlexibleStrategy.saved, "kept")

    def setup(self):
        self.m, self.kept, self.beta = np.zeros(self.layout.size), np.zeros(1), 0.9

    def update(self, replies):
        self.m = self.beta * self.m + replies.ordered_sum(np.full(len(replies), 1 / len(replies)))
        self.kept = self.kept + 1
        self.weights += self.m
"""


def test_what_a_method_of_ones_own_forgets_is_told(own: Any, capsys: Any) -> None:
    own.write("forgetful.py", FORGETFUL)
    code, _, shown = run("--strategy=forgetful.Momentum", "--num-rounds=3", capsys=capsys)
    assert code == 0
    assert "warning: m of Momentum changes and is not in its `saved`" in shown


class Kept(Strategy):
    """A strategy with attributes of all kinds, which wraps another one."""

    initialize_parameters = configure_fit = aggregate_fit = evaluate = None  # type: ignore[assignment]
    configure_evaluate = aggregate_evaluate = None  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = ndarrays_to_parameters([rng.normal(size=3)])
        self.history = {"loss": [rng.random(), np.float32(rng.random())], 3: (None, rng.normal(size=2))}
        self.rng, self.rule = rng, np.mean
        self.strategy = FedAvgM(initial_parameters=ndarrays_to_parameters([rng.normal(size=2)]))


def test_attributes_of_a_strategy_of_flower(tmp_path: Path) -> None:
    one, other = Kept(1), Kept(2)
    one.strategy.momentum_vector = [np.arange(3.0)]  # type: ignore[assignment]
    Attributes(other).load_state_dict(stored(Attributes(one).state_dict()))
    assert (other.weights, other.rule) == (one.weights, np.mean)
    assert other.strategy.initial_parameters == one.strategy.initial_parameters
    np.testing.assert_array_equal(other.strategy.momentum_vector, [np.arange(3.0)])  # type: ignore[arg-type]
    assert other.history["loss"] == one.history["loss"]
    assert type(other.history["loss"][1]) is np.float32
    np.testing.assert_array_equal(other.history[3][1], one.history[3][1])
    assert other.rng.random() == one.rng.random()
    one.history["loss"].append({1, 2})
    with pytest.raises(ValueError, match=r"Kept.history\['loss'\]\[2\] is a set, which cannot be saved"):
        Attributes(one).state_dict()
