"""FedVARP and FedStale: their corners to the bit, and the limit of FedVARP."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, N, Rounds, delta, make, reply
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Roster

TABLE = [[0, 1, 2], [3], [0, 4], [], [1, 2, 3, 4], [0]]


def weights_of(name: str, steps: bool = False, **options: Any) -> np.ndarray:
    """The weights after each round of a table, with incomplete work or without."""
    rounds, seen = Rounds(make(name, local_steps=3, **options)), []
    for t, online in enumerate(TABLE):
        done = {k: 1 + (k + t) % 3 if steps else 3 for k in online}
        seen.append(rounds.play({k: delta(k, t) for k in online}, steps=done))
    return np.array(seen)


@pytest.mark.parametrize("units", ["gradient", "update"])
@pytest.mark.parametrize("weights", ["n", "uniform"])
def test_without_stale_updates_they_are_fedavg_and_fedau(units: str, weights: str) -> None:
    """Bit for bit."""
    common: dict[str, Any] = {"weights": weights}
    own = {"beta": 0.0, "units": units, "cutoff": 0}
    np.testing.assert_array_equal(weights_of("fedvarp", **common, **own), weights_of("fedavg", **common))
    for steps in (False, True):
        got = weights_of("fedstale", steps, **common, **own)
        np.testing.assert_allclose(got, weights_of("fedau", steps, **common, cutoff=0), rtol=1e-14)


def test_at_a_constant_rate_it_ends_where_full_participation_does() -> None:
    """Two of five clients a round, one step: the optimum; FedAvg keeps swinging."""
    curvature = np.random.default_rng(1).uniform(0.5, 2, (N, M))
    optima = np.random.default_rng(2).normal(size=(N, M))
    best = (curvature * optima).sum(axis=0) / curvature.sum(axis=0)
    for name, own, limit in (("fedvarp", "mean", 1e-4), ("fedvarp", "prob", 1e-4), ("fedavg", "", np.inf)):
        roster, options = Roster(np.full(N, 10)), {"agg": own} if own else {}
        strategy = strategies.make(name, ndarrays_to_parameters(START), roster, local_steps=1, **options)
        rounds, rng = Rounds(strategy), np.random.default_rng(3)
        for _ in range(200):
            w = strategy.weights
            moves = {
                k: -0.1 * curvature[k] * (w - optima[k]) for k in rng.choice(N, 2, replace=False).tolist()
            }
            rounds.play(moves)
        far = np.abs(strategy.weights - best).max()
        assert far < limit
        assert own or far > 0.005


def test_the_sum_follows_sizes_and_departures() -> None:
    """An empty round moves by sum_k p_k y_k over the members, with the sizes that they reported last."""
    rounds = Rounds(make("fedvarp", units="update", empty="move"))
    latest: dict[int, np.ndarray] = {}
    sizes = SIZES.copy()
    for number, (online, departed) in enumerate([([0, 1, 2], []), ([1, 3], [0]), ([2, 4], []), ([3], [1])]):
        asked = rounds.ask(online, departed=departed)
        for client in departed:
            latest.pop(client)
        replies = []
        for client, instruction in asked.items():
            sizes[client] += 7 * number
            latest[client] = delta(client, number)
            replies.append((client, reply(instruction, latest[client], int(sizes[client]))))
        before = rounds.hear(*replies)
        p = sizes / sizes[rounds.strategy.roster.member].sum()
        expected = sum(p[k] * y for k, y in latest.items())
        np.testing.assert_allclose(rounds.play({}) - before, expected, rtol=1e-9)
