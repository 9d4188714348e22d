"""Work on columns: the same bits however many threads there are, in memory and in a file."""

import threading
from typing import Any

import numpy as np
import pytest
from fakes import Rounds
from flwr.common import ndarrays_to_parameters

import strategies
import strategies.parallel
from strategies import Roster

M = 5000  # several parts in memory, one in a file
N = 6


def weights(monkeypatch: pytest.MonkeyPatch, name: str, threads: int, **options: Any) -> np.ndarray:
    """Play some rounds of random updates; the weights after each, shape (T, M)."""
    monkeypatch.setattr(strategies.parallel, "num_threads", lambda: threads)
    rng = np.random.default_rng(1)
    start = ndarrays_to_parameters([rng.standard_normal(M)])
    rounds = Rounds(strategies.make(name, start, Roster(np.arange(1, N + 1)), local_steps=3, **options))
    seen = []
    for t in range(1, 6):
        online = sorted(rng.choice(N, 4, replace=False).tolist())
        deltas = {client: rng.standard_normal(M) for client in online}
        steps = {client: int(rng.integers(1, 4)) for client in online}
        seen.append(rounds.play(deltas, departed=[0] if t == 4 else [], steps=steps))
    return np.array(seen)


@pytest.mark.parametrize("name", ["fedavg", "mifa", "fedlaavg", "mimic", "scaffold", "fedgate", "vrl-sgd"])
def test_threads_and_files_change_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = weights(monkeypatch, name, threads=1)
    assert np.abs(np.diff(expected, axis=0)).max(axis=1).min() > 0
    np.testing.assert_array_equal(weights(monkeypatch, name, threads=3), expected)
    if name != "fedavg":
        in_file = weights(monkeypatch, name, threads=3, table_memory=0.0)
        np.testing.assert_array_equal(in_file, expected)


def test_every_part_is_done_once_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies.parallel, "num_threads", lambda: 2)
    both, done = threading.Barrier(2, timeout=30), []

    def work(part: int) -> None:
        if part < 2:
            both.wait()  # neither goes on alone
        done.append(part)

    strategies.parallel.for_each(work, range(7))
    assert sorted(done) == list(range(7))


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    monkeypatch.setattr(strategies.parallel, "num_threads", lambda: 2)

    def work(part: int) -> None:
        if part == bad:
            raise OSError(f"part {part}")

    with pytest.raises(OSError, match=f"part {bad}"):
        strategies.parallel.for_each(work, range(4))
