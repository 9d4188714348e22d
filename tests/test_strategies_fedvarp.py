"""FedVARP and FedStale: their corners to the bit, and what FedVARP moves by in an empty round."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, Rounds, delta, make, reply

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
