"""FedDyn: h is the mean of what the clients keep, and the limit is the optimum whoever takes part."""

from typing import Any

import numpy as np
from devices import Device
from fakes import SIZES, START, M, N, make
from hypothesis import given, settings
from tables import DEVICE_TABLES, Clients, E


def problem(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and optimum of a client's quadratic."""
    rng = np.random.default_rng(client)
    return rng.uniform(0.5, 2, M), rng.normal(size=M)


def device(client: int) -> Device:
    curvature, optimum = problem(client)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum))


def test_first_round_by_hand() -> None:
    """One weight-wise step from w: y - w = -eta g; h = -alpha/N sum; w moves by twice the mean change."""
    strategy: Any = make("feddyn", local_steps=1, learning_rate=0.1)
    start = np.concatenate([array.ravel() for array in START])
    for _ in Clients(strategy, device).play([(dict.fromkeys(range(N), 1), set(), set())]):
        change = np.mean([-0.1 * problem(k)[0] * (start - problem(k)[1]) for k in range(N)], axis=0)
        np.testing.assert_allclose(strategy.weights, start + 2 * change, rtol=1e-12)
        np.testing.assert_allclose(strategy.h, -0.1 * change, rtol=1e-12)


def test_the_limit_is_the_optimum_in_spite_of_drift_and_absences() -> None:
    """FedAvg with the same steps ends elsewhere."""
    rng = np.random.default_rng(0)
    curvatures, optima = (np.array(part) for part in zip(*map(problem, range(N)), strict=True))
    best = (curvatures * optima).sum(axis=0) / curvatures.sum(axis=0)
    for name, options in (("feddyn", {"strength": 1.0}), ("fedavg", {"weights": "uniform"})):
        strategy = make(name, local_steps=20, learning_rate=0.2, **options)
        there = [rng.choice(N, 2, replace=False).tolist() for _ in range(100)]
        table = [({k: int(rng.integers(10, 21)) for k in online}, (), ()) for online in there]
        for _ in Clients(strategy, device).play(table):
            far = np.abs(strategy.weights - best).max()
        assert far < 1e-4 if name == "feddyn" else far > 0.1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(DEVICE_TABLES)
def test_trajectories_are_those_of_the_algorithm(table: Any) -> None:
    """Algorithm 1 in loops over clients and steps, over lost replies, arrivals and departures."""
    alpha, rate = 0.7, 0.1
    strategy: Any = make("feddyn", range(N - 1), local_steps=E, learning_rate=rate, strength=alpha)
    w, g = np.concatenate([array.ravel() for array in START]), dict[int, np.ndarray]()
    for (steps, *_), answers in zip(table, Clients(strategy, device).play(table), strict=True):
        members = np.flatnonzero(strategy.roster.member).tolist()
        g = {k: g.get(k, np.zeros(M)) for k in members}
        local = dict.fromkeys(answers, w)
        for k in answers:
            curvature, optimum = problem(k)
            for _ in range(steps[k]):
                y = local[k]
                local[k] = y - rate * (curvature * (y - optimum) - g[k] + alpha * (y - w))
        g |= {k: g[k] - alpha * (y - w) for k, y in local.items()}
        if answers:
            w = np.mean([*local.values()], axis=0) - np.mean([*g.values()], axis=0) / alpha
        np.testing.assert_allclose(strategy.weights, w, rtol=1e-9, atol=1e-11)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(DEVICE_TABLES)
def test_h_is_the_mean_of_what_the_members_keep(table: Any) -> None:
    """After every round, over lost replies, arrivals and departures with a farewell."""
    strategy: Any = make("feddyn", range(N - 1), local_steps=E)
    federation = Clients(strategy, device)
    for _ in federation.play(table):
        members = np.flatnonzero(strategy.roster.member).tolist()
        kept = [federation.kept(k).get("gradient", np.zeros(M)) for k in members]
        if members:
            np.testing.assert_allclose(strategy.h, np.mean(kept, axis=0), atol=1e-12)
