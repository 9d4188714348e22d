"""Whose updates count: shares by hand, and of methods that promise to be unbiased."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedtide.config import Settings
from fedtide.engine.update_shares import update_shares
from fedtide.plan import Plan

SIZES = np.array([10, 20, 30, 40])
DATA = SIZES / SIZES.sum()


def shares(trace: str, strategy: str, **changes: Any) -> np.ndarray:
    settings = Settings(trace=trace, strategy=strategy, num_clients=4, **{"num_rounds": 6, **changes})
    plan = Plan.of(settings)
    return update_shares(plan, SIZES, plan.trace)


def table(write: Any, completion: Callable[[int, int], float]) -> str:
    """A trace of six rounds from a file, by round and client; what is 0 has no row."""
    done = {(t, k): completion(t, k) for t in range(1, 7) for k in range(4)}
    rows = [f"{t},{k},{share}" for (t, k), share in done.items() if share]
    return "table:file=" + write("\n".join(["round,client,completion", *rows, ""]), "rounds.csv")


@pytest.fixture
def half(write: Any) -> str:
    """Client 0 is there in every second round only, with all of its work."""
    return table(write, lambda t, k: 1.0 if k or t % 2 else 0.0)


@pytest.mark.parametrize("strategy", ["fedavg", "scheme-c", "fedau", "fedvarp", "fedlaavg"])
def test_all_there_is_unbiased(strategy: str) -> None:
    np.testing.assert_allclose(shares("always", strategy), DATA, rtol=1e-9)


@pytest.mark.parametrize(
    "strategy", ["mifa", "mimic", "scaffold", "fedgate", "fedawe", "fedlaavg:memory=client,weights=none"]
)
def test_all_there_counts_alike(strategy: str) -> None:
    np.testing.assert_allclose(shares("always", strategy), np.full(4, 0.25), rtol=1e-6)


def test_fedavg_counts_rounds(half: str) -> None:
    """With client 0: its data's shares; without it, those of the others among themselves."""
    expected = (DATA + np.array([0, 20, 30, 40]) / 90) / 2
    np.testing.assert_allclose(shares(half, "fedavg"), expected, rtol=1e-9)


def test_a_table_counts_who_is_away(half: str) -> None:
    np.testing.assert_allclose(shares(half, "mifa"), np.full(4, 0.25), rtol=1e-6)


def test_echoes_make_up_for_rounds_away(half: str) -> None:
    """Client 0 came in rounds 1, 3 and 5: five rounds are made up for, the sixth is not yet."""
    moved = shares(half, "fedawe")
    np.testing.assert_allclose(moved[0] / moved[1], 5 / 6, rtol=1e-6)


def test_incomplete_work(write: Any) -> None:
    """Client 3 does half of its steps: FedAvg counts half of it, scheme C all."""
    trace = table(write, lambda t, k: 0.5 if k == 3 else 1.0)
    np.testing.assert_allclose(shares(trace, "scheme-c"), DATA, rtol=1e-9)
    np.testing.assert_allclose(shares(trace, "fedavg"), np.array([10, 20, 30, 20]) / 80, rtol=1e-9)


def test_late_and_lost_replies() -> None:
    late = shares("always+late:p=0.5,rounds=2+lost:p=0.2", "fedbuff:buffer=1", num_rounds=40)
    assert late.sum() == pytest.approx(1)
    assert (late > 0).all()


def test_a_method_without_clients_has_no_shares() -> None:
    with pytest.raises(ValueError, match="sequential-sgd trains without clients"):
        shares("always", "sequential-sgd")
