"""F3AST: who is selected, and what the rates of participation are."""

from typing import Any

import numpy as np
from fakes import N, Rounds, make, work


def test_rates_add_up_to_k_and_coefficients_to_one() -> None:
    """In the long run, and whoever is available: sum r = K, mean of sum_S p / r = 1."""
    rng = np.random.default_rng(0)
    there = rng.uniform(0.3, 1, N)
    rounds = Rounds(make("f3ast", clients_per_round=2, rate_memory=0.01, weights="uniform"))
    strategy: Any = rounds.strategy
    sums, rates = [], []
    for _ in range(1500):
        online = np.flatnonzero(rng.random(N) < there).tolist()
        asked = rounds.ask(online)
        rounds.hear(*((client, work(client, i)) for client, i in asked.items()))
        active = strategy.report.active
        sums.append((1 / N / strategy.rate(active)).sum())
        rates.append(strategy.rate(np.arange(N)).sum())
    assert 0.95 < np.mean(sums[500:]) < 1.05
    assert 1.7 < np.mean(rates[500:]) <= 2


def test_a_lost_reply_is_no_participation() -> None:
    """The rate falls, so that the client is selected again soon."""
    rounds = Rounds(make("f3ast", clients_per_round=1, rate_memory=0.5, weights="uniform"))
    asked = [list(rounds.ask(range(N)))]
    rounds.hear()
    asked.append(list(rounds.ask(range(N))))
    assert asked == [[0], [0]]
    rounds.hear((0, work(0, rounds.ask(range(N))[0])))
    assert list(rounds.ask(range(N))) == [1]
