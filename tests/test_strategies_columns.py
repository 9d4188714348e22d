"""Tables in memory and in a file, of which different numbers of columns are changed at a time."""

from typing import Any

import numpy as np
import pytest
from fakes import Rounds
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Roster

M = 200_000  # several parts in memory, one in a file
N = 6


def weights(name: str, **options: Any) -> np.ndarray:
    """Play some rounds of random updates; the weights after each, shape (T, M)."""
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


@pytest.mark.parametrize("name", ["mifa", "fedlaavg", "mimic", "scaffold", "fedgate", "vrl-sgd"])
def test_a_file_changes_nothing(name: str) -> None:
    in_memory = weights(name)
    assert np.abs(np.diff(in_memory, axis=0)).max(axis=1).min() > 0
    np.testing.assert_allclose(weights(name, table_memory=0.0), in_memory, rtol=1e-12, atol=1e-13)
