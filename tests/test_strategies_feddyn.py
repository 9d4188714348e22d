"""FedDyn: h is the mean of what the clients keep, and the limit is the optimum whoever takes part."""

from typing import Any

import numpy as np
from devices import Device
from fakes import SIZES, START, M, N, Rounds, make
from hypothesis import given, settings
from hypothesis import strategies as st

E = 5


def problem(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and optimum of a client's quadratic."""
    rng = np.random.default_rng(client)
    return rng.uniform(0.5, 2, M), rng.normal(size=M)


def device(client: int) -> Device:
    curvature, optimum = problem(client)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum))


def play(rounds: Rounds, devices: list[Device], steps: dict[int, int], lost: Any = (), **events: Any) -> None:
    asked = rounds.ask(steps, **events)
    results = {client: devices[client].fit(i, steps.get(client, 1)) for client, i in asked.items()}
    rounds.hear(*((client, result) for client, result in results.items() if client not in lost))
    assert rounds.strategy.report.rejected == []


def kept(rounds: Rounds, devices: list[Device]) -> np.ndarray:
    """g_k of the members with data, as the server may rely on it."""
    roster = rounds.strategy.roster
    states = [
        devices[k].memory.open(int(roster.accepted[k]))[0].committed
        for k in np.flatnonzero(roster.member).tolist()
    ]
    return np.array([state.get("gradient", np.zeros(M)) for state in states]).reshape(-1, M)


def test_first_round_by_hand() -> None:
    """One weight-wise step from w: y - w = -eta g; h = -alpha/N sum; w moves by twice the mean change."""
    rounds, devices = Rounds(make("feddyn", local_steps=1, learning_rate=0.1)), [device(k) for k in range(N)]
    start = np.concatenate([array.ravel() for array in START])
    play(rounds, devices, dict.fromkeys(range(N), 1))
    change = np.mean([-0.1 * problem(k)[0] * (start - problem(k)[1]) for k in range(N)], axis=0)
    np.testing.assert_allclose(rounds.strategy.weights, start + 2 * change, rtol=1e-12)
    np.testing.assert_allclose(rounds.strategy.h, -0.1 * change, rtol=1e-12)  # type: ignore[attr-defined]


def test_the_limit_is_the_optimum_in_spite_of_drift_and_absences() -> None:
    """FedAvg with the same steps ends elsewhere."""
    rng = np.random.default_rng(0)
    curvatures, optima = (np.array(part) for part in zip(*map(problem, range(N)), strict=True))
    best = (curvatures * optima).sum(axis=0) / curvatures.sum(axis=0)
    for name, options in (("feddyn", {"strength": 1.0}), ("fedavg", {"weights": "uniform"})):
        rounds = Rounds(make(name, local_steps=20, learning_rate=0.2, **options))
        devices = [device(k) for k in range(N)]
        for _ in range(100):
            there = rng.choice(N, 2, replace=False).tolist()
            play(rounds, devices, {k: int(rng.integers(10, 21)) for k in there})
        far = np.abs(rounds.strategy.weights - best).max()
        assert far < 1e-4 if name == "feddyn" else far > 0.1


TABLE = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, N - 1), st.integers(1, E), max_size=N),  # who is there, and its s_k
        st.sets(st.integers(0, N - 1)),  # whose reply gets lost
        st.sets(st.integers(0, N - 1), max_size=2),  # who arrives, or departs if it is there
    ),
    max_size=8,
)


@settings(max_examples=60, derandomize=True)
@given(TABLE)
def test_h_is_the_mean_of_what_the_members_keep(table: Any) -> None:
    """After every round, over lost replies, arrivals and departures with a farewell."""
    rounds, devices = Rounds(make("feddyn", range(N - 1), local_steps=E)), [device(k) for k in range(N)]
    for steps, lost, moved in table:
        member = rounds.strategy.roster.member.copy()
        departed = [k for k in sorted(moved) if member[k]]
        arrived = [k for k in sorted(moved) if not member[k]]
        there = {k: s for k, s in steps.items() if (member[k] and k not in moved) or k in arrived}
        play(rounds, devices, there, lost - set(departed), arrived=arrived, departed=departed)
        if rounds.strategy.roster.num_members:
            mean = kept(rounds, devices).mean(axis=0)
            np.testing.assert_allclose(rounds.strategy.h, mean, atol=1e-12)  # type: ignore[attr-defined]
