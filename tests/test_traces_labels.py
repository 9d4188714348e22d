"""Clients whose rates depend on the labels of their data."""

import json
from typing import Any

import numpy as np
import pytest
from test_traces_rates import given_rates

import sim
from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES

L = 10


def shares(num_clients: int, seed: int = 1, alpha: float = 0.1, count: int = L) -> np.ndarray:
    """Label shares of a Dirichlet partition with `alpha` for every label, shape (N, L)."""
    return np.random.default_rng(seed).dirichlet(np.full(count, alpha), num_clients)


def rates(nu: np.ndarray, seed: int = 3, **options: Any) -> np.ndarray:
    return TRACES["labels"](len(nu), seed, label_shares=nu, **options).rates


def phi(seed: int, count: int = L) -> np.ndarray:
    """The weights of the labels: the rates of clients with one label each, unscaled."""
    return rates(np.eye(count), seed, floor=0.0, mean=1 / count)


def test_rates_by_definition():
    nu = shares(500)
    weights = phi(3)
    assert weights.sum() == pytest.approx(1)
    p = rates(nu, floor=0.05, mean=0.15)
    by_hand = [max(0.05, 0.15 * L * sum(nu[k, c] * weights[c] for c in range(L))) for k in range(500)]
    assert p == pytest.approx(np.minimum(by_hand, 1))
    assert p.min() == 0.05
    equal = np.full((3, L), 1 / L)
    assert rates(equal, mean=0.3) == pytest.approx(0.3)


def test_rates_of_many_labels_are_cut_at_1():
    unscaled = phi(3, 100) * 100 * 0.1
    assert unscaled.max() > 1
    assert rates(np.eye(100)) == pytest.approx(np.clip(unscaled, 0.02, 1))
    assert rates(np.eye(100)).max() == 1


def test_weights_are_dirichlet():
    # Dirichlet(a) with a = 0.1 for each of L labels: mean 1 / L, variance (1 / L) (1 - 1 / L) / (a L + 1).
    drawn = np.array([phi(seed) for seed in range(3000)])
    assert drawn.mean(axis=0) == pytest.approx(1 / L, abs=5 * np.sqrt(0.045 / 3000))
    assert drawn.var() == pytest.approx(0.045, rel=0.05)


def test_fedawe_rates():
    drawn = np.array([rates(np.eye(5), seed, phi="uniform") for seed in range(3000)])
    for label, highest in enumerate([1, 1, 0.5, 0.5, 0.5]):  # the first half of an odd number is rounded down
        values = drawn[:, label]
        assert values.min() < 0.01  # no floor
        assert 0.98 * highest < values.max() <= highest
        assert values.mean() == pytest.approx(highest / 2, abs=5 * highest / np.sqrt(12 * 3000))
    nu = shares(50, count=5)
    assert rates(nu, 7, phi="uniform") == pytest.approx(nu @ drawn[7])


@pytest.mark.parametrize("dynamics", ["interleaved", "markov", "cyclic"])
def test_labels_drive_any_dynamics(dynamics):
    nu = shares(2000)
    trace = TRACES["labels"](2000, 3, label_shares=nu, dynamics=dynamics)
    same = given_rates(rates(nu), 3, dynamics=dynamics)
    assert all(np.array_equal(trace.round(t).online, same.round(t).online) for t in (1, 6, 700))
    seen = np.mean([trace.round(t).online for t in range(1, 2001)], axis=0)
    likely = trace.rates > np.quantile(trace.rates, 0.9)
    assert seen[likely].mean() > 3 * seen[~likely].mean()


def test_label_shares_are_those_of_all_clients():
    with pytest.raises(ValueError, match="label shares of 4 clients are given, for 5 clients"):
        TRACES["labels"](5, 1, label_shares=shares(4))


def settings(**changes: Any) -> Settings:
    given = {"trace": "labels", "num_clients": 30, "partition": "dirichlet:alpha=1", "seed": 4}
    return Settings(**{**given, **changes})


def counted_shares(chosen: Settings) -> np.ndarray:
    """Label shares counted one by one, held-out examples included."""
    data = Federation.of(chosen).data
    nu = np.zeros((chosen.num_clients, data.num_outputs))
    for k in range(chosen.num_clients):
        own = np.array([k])
        labels = data.train_set(own)[1].tolist()
        if chosen.evaluate_on == "objective":
            labels += data.holdout(own)[1].tolist()
        for label in labels:
            nu[k, label] += 1 / len(labels)
    return nu


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evaluate_on": "objective", "holdout": 0.4},
        {"partition": "label", "sizes": "pareto"},
        {"task": "synthetic", "partition": ""},
    ],
)
def test_rates_follow_the_data(changes):
    chosen = settings(**changes)
    trace = Federation.of(chosen).trace
    assert trace.rates == pytest.approx(rates(counted_shares(chosen), 4))
    assert np.ptp(trace.rates) > 0.1
    assert np.array_equal(Federation.of(chosen.for_clients()).trace.rates, trace.rates)


def test_show_trace_takes_the_labels_from_the_data(tmp_path, capsys):
    arguments = ["--num-clients=30", "--num-rounds=200", "--seed=4", "--json", f"--run-dir={tmp_path}"]
    spec = "labels:dynamics=markov,floor=0.1"
    assert sim.main(["--show-trace", spec, "--partition=dirichlet:alpha=1", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    trace = Federation.of(settings(trace=spec)).trace
    assert shown["online"] == pytest.approx([trace.round(t).online.mean() for t in range(1, 201)])


def test_show_trace_refuses_labels_of_data_that_cannot_be_divided(tmp_path, capsys):
    with pytest.raises(SystemExit):
        sim.main(["--show-trace", "labels", "--num-clients=5000", f"--run-dir={tmp_path}"])
    error = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(error) == 1
    assert "5000 clients for 1438 examples" in error[0]
