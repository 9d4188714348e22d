"""Replies that take more than a share of the memory lie in a file: the same bits, and few of them in RAM."""

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import collected
from test_engine_run_folder import no_file_above
from test_engine_transports import RUN

from clients.simulated import cohort, virtual
from clients.simulated.virtual import VirtualClients
from clients.training import make_rule
from fedtide.base import memory, spill
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray import shared_rows, transport, workers
from fedtide.engine.transports.ray.workers import Worker
from strategies.core import replies, reply_vectors

FLOAT = np.dtype(np.float32)
linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="it counts pages by /proc")


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Have all replies lie in files of a folder, which is returned."""
    for module in (spill, shared_rows):
        monkeypatch.setattr(module, "replies_limit", lambda: 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert not [*tmp_path.glob("*")]


def held(folder: Path) -> int:
    """Bytes of the files of a folder that this process holds in RAM."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-", line):
            found = str(folder) in line
        elif found and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@pytest.mark.parametrize("strategy", ["scheme-c", "mimic", "scaffold", "efl"])
def test_a_run_has_the_same_bits(
    simulate: Callable[..., Any], in_files: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Also where some fail, so that replies are read one by one, and where they are let go at once."""
    run = {**RUN, "strategy": strategy, "server_opt": "adam" if strategy == "scheme-c" else ""}
    inside = simulate(**run)
    monkeypatch.setattr(reply_vectors, "_HELD", 1)
    monkeypatch.setattr(reply_vectors, "_FEW", 1)
    let_go = simulate(**run)
    monkeypatch.undo()
    usual = simulate(**run)
    for other in (inside, let_go):
        np.testing.assert_array_equal(other.weights, usual.weights)
        assert [r["active"] for r in other.rounds] == [r["active"] for r in usual.rounds]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_so_it_has_on_ray(
    simulate: Callable[..., Any],
    ray_cluster: None,
    in_files: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
) -> None:
    """On this machine, and as on others, in calls of two clients each."""
    inline = simulate(**RUN)
    run = simulate(**RUN, engine="ray", num_workers=num_workers)
    np.testing.assert_array_equal(run.weights, inline.weights)
    monkeypatch.setattr(transport, "PART", 2 * inline.weights.size * 4)
    monkeypatch.setattr(workers, "Worker", lambda actor, node, local: Worker(actor, "elsewhere", False))
    elsewhere = simulate(**RUN, engine="ray", num_workers=num_workers)
    np.testing.assert_array_equal(elsewhere.weights, inline.weights)


@linux
def test_what_is_let_go_is_not_held_and_stays(in_files: Path) -> None:
    rows = spill.new_rows(3, 5000, FLOAT)
    rows[:] = 7
    assert held(in_files) >= rows.nbytes
    spill.let_go(rows[0, 10:20])
    spill.let_go(rows)
    assert held(in_files) == 0
    np.testing.assert_array_equal(rows, 7)
    spill.let_go(np.ones(3))  # in RAM


def test_sums_hold_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that have been read and not been let go: about eight rows, where that is the limit."""
    count, width, held = 100, 50_000, [0]
    read = reply_vectors.read_block

    def block(*arguments: Any) -> Any:
        deltas = read(*arguments)
        held.append(held[-1] + deltas.size)
        return deltas

    for module in (replies, reply_vectors):
        monkeypatch.setattr(module, "read_block", block)
    monkeypatch.setattr(reply_vectors, "let_go", lambda array: held.append(held[-1] - array.size))
    monkeypatch.setattr(reply_vectors, "_HELD", 8 * width)
    monkeypatch.setattr(reply_vectors, "_FEW", 0)
    found = collected(dict(enumerate(np.ones((count, width), np.float32))), np.zeros(width, np.float32))
    for summed in (found.weighted_sum, found.ordered_sum):
        np.testing.assert_array_equal(summed(np.ones(count)), count)
        assert held[-1] == 0
    assert 8 * width <= max(held) <= 14 * width


def test_training_holds_the_rows_of_one_cohort(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, train = [0], VirtualClients._train

    def trained(clients: Any, start: Any, shared: Any, cohort: Any, rows: np.ndarray) -> Any:
        held.append(held[-1] + len(rows))
        return train(clients, start, shared, cohort, rows)

    monkeypatch.setattr(VirtualClients, "_train", trained)
    monkeypatch.setattr(virtual, "let_go", lambda rows: held.append(held[-1] - len(rows)))
    simulate(num_clients=8, num_rounds=2, cohort="loop", trace="always")
    assert held == [0] + [1, 0] * 16


def test_a_cohort_leaves_nothing_to_the_garbage_collector(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise 40 models of 45 MB waited for it."""
    made = []

    def noted(*arguments: Any) -> Any:
        rule = make_rule(*arguments)
        made.append(weakref.ref(rule))
        return rule

    monkeypatch.setattr(cohort, "make_rule", noted)
    gc.disable()
    try:
        simulate(num_rounds=1, trace="always")
        assert made
        assert [rule() for rule in made] == [None] * len(made)
    finally:
        gc.enable()


def test_a_full_disk_ends_the_run_in_a_line(simulate: Callable[..., Any], in_files: Path) -> None:
    with no_file_above(1000), pytest.raises(EngineLost, match=r"for the replies of .* clients; .*TMPDIR"):
        simulate(**RUN)


def test_limits_of_containers(tmp_path: Path) -> None:
    """The smallest of those of the process and of what it is in, of both versions of cgroups."""
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/jobs/a\n3:cpu,cpuacct:/\n0::/slice/unit\n")
    for file, limit in {
        "memory/jobs/a/memory.limit_in_bytes": "9223372036854771712",
        "memory/jobs/memory.limit_in_bytes": "3000",
        "slice/unit/memory.max": "max",
        "slice/memory.max": "2000",
        "memory.max": "5000",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{limit}\n")
    assert min(memory._container_limits(str(tmp_path), str(own))) == 2000
    assert memory._container_limits(str(tmp_path), str(tmp_path / "absent")) == []
