"""Amplified SCAFFOLD: SCAFFOLD is its corner, and c stays the mean of the members' c_k."""

from typing import Any

import numpy as np
import pytest
from fakes import START, M, N, Rounds, delta, make
from flwr.common import ndarrays_to_parameters

import strategies
from fedtide.base.specs import bind
from strategies import Roster
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from strategies.registry import layers_of


def weights_of(name: str, **options: Any) -> np.ndarray:
    rounds, seen = Rounds(make(name, range(N - 1), local_steps=3, **options)), []
    events = {3: {"arrived": [N - 1]}, 5: {"departed": [1]}}
    for t, online in enumerate([[0, 1, 2], [3], [0, 2], [1, 4], [], [0, 3, 4], [2]]):
        steps = {k: 1 + (k + t) % 3 for k in online}
        seen.append(rounds.play({k: delta(k, t) for k in online}, steps=steps, **events.get(t, {})))
    return np.array(seen)


def test_a_period_of_one_round_is_scaffold() -> None:
    got = weights_of("amplified-scaffold", period=1, gamma=1.0)
    np.testing.assert_allclose(got, weights_of("scaffold"), rtol=1e-12)


def test_another_model_begins_another_period() -> None:
    """By hand: of the old period nothing counts, and c_i is then the mean gradient of the new one."""
    options: dict[str, Any] = {"period": 4, "gamma": 1.0, "initial_model": "two-norm"}
    options |= {"local_steps": 1, "learning_rate": 1.0}
    start, roster = ndarrays_to_parameters(START), Roster(np.array([10] * 4))
    rounds = Rounds(strategies.make("amplified-scaffold", start, roster, **options))
    for _ in range(2):
        rounds.play({0: np.full(M, -100.0), 1: np.full(M, -100.0)})
    rounds.play({0: np.full(M, -1.0), 1: np.full(M, -1.0)}, departed=[2, 3])  # asked about another model
    for _ in range(4):
        rounds.play({0: np.full(M, -1.0), 1: np.full(M, -1.0)})
    table: Any = rounds.strategy.table  # type: ignore[attr-defined]
    np.testing.assert_allclose(table.read(np.array([0, 1])), 1.0)


@pytest.mark.parametrize("departure", ["include", "exclude"])
def test_c_is_the_mean_of_the_members(departure: str) -> None:
    """After every round, over arrivals, departures and the ends of periods."""
    rounds = Rounds(make("amplified-scaffold", range(N - 1), period=2, gamma=1.3, departure=departure))
    strategy: Any = rounds.strategy
    events = {3: {"arrived": [N - 1]}, 5: {"departed": [1]}, 6: {"departed": [0]}}
    for t, online in enumerate([[0, 1, 2], [3], [0, 2], [1, 4], [], [3, 4], [2], [4]]):
        rounds.play({k: delta(k, t) for k in online}, **events.get(t, {}))
        members = np.flatnonzero(strategy.roster.member)
        mean = strategy.table.read(members).mean(axis=0)
        np.testing.assert_allclose(strategy.control, mean, atol=1e-12)


def test_a_discarded_update_is_not_amplified_later() -> None:
    """A period of two rounds: a client whose weights exploded leaves no trace, neither then nor later."""
    rounds = Rounds(make("amplified-scaffold", period=2, gamma=1.5))
    start = rounds.strategy.weights.copy()
    for size in (0.01, 3e15, 0.01, 0.01, 0.01):
        weights = rounds.play({0 if size > 1 else 1: np.full(M, size)})
        assert np.abs(weights - start).max() < 1


def test_the_change_of_a_period_is_that_of_the_model_whatever_layers_make_of_it() -> None:
    """With a server rate of 1/2, P = 2 and gamma = 2, four updates of 1 move w by 2 (1 + 1) / 2 twice."""
    options = {
        "period": 2,
        "gamma": 2.0,
        "layers": layers_of(bind("server-opt", SERVER_OPTIMIZERS, "sgd:rate=0.5"), ""),
    }
    rounds = Rounds(make("amplified-scaffold", **options))
    start = rounds.strategy.weights.copy()
    for _ in range(4):
        weights = rounds.play({0: np.ones(M)})
    np.testing.assert_allclose(weights - start, 4)
