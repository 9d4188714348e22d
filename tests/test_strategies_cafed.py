"""CA-Fed: who is left out, by hand and by all subsets, and the weights of the others."""

from typing import Any

import numpy as np
from fakes import SIZES, M, N, Rounds, delta, make, play, work

from strategies.cafed import worth_keeping
from strategies.parts.availability import Availability


def test_exclusion_by_hand() -> None:
    """f = (1, 1, 4), p = (.5, .3, .2), bias 4: with all 1.6; without client 2 it is 1 + 4 * 4 * .04 = 1.64.

    Without client 1 it is (.5 + .8) / .7 + 16 * .09 = 3.3; with bias 3, leaving out client 2 pays: 1.48.
    """
    p, f, order = np.array([0.5, 0.3, 0.2]), np.array([1.0, 1.0, 4.0]), np.array([1, 2, 0])
    assert worth_keeping(p, f, order, 4.0, 0.0).tolist() == [True, True, True]
    assert worth_keeping(p, f, order, 3.0, 0.0).tolist() == [True, True, False]
    assert worth_keeping(p, f, order, 3.0, 0.2).tolist() == [True, True, True]
    assert worth_keeping(p, f, order, 0.0, 0.0).tolist() == [True, True, False]  # leaving out 0 gains nothing
    assert worth_keeping(p, 0 * f, order, 1.0, 0.0).all()  # as after one step each
    assert worth_keeping(p, f, order[::-1], 0.0, -np.inf).sum() == 1  # somebody stays


def test_availability_of_a_markov_chain() -> None:
    """pi and lambda are found; a client that always or never is there has no correlation."""
    rng, rounds, observed = np.random.default_rng(0), 20_000, Availability()
    pi, correlation = np.array([0.5, 0.3, 0.8]), np.array([0.0, 0.9, -0.2])
    now = rng.random(3) < pi
    for _ in range(rounds):
        now = rng.random(3) < pi + correlation * (now - pi)
        observed.observe(np.append(np.flatnonzero(now), 3), np.ones(5, np.bool_))
    clients = np.arange(5)
    np.testing.assert_allclose(observed.shares(clients), [*pi, 1, 0], atol=0.03)
    np.testing.assert_allclose(observed.correlations(clients), [*correlation, 0, 0], atol=0.03)
    observed.forget(1)
    observed.observe(np.array([1]), np.ones(5, np.bool_))
    assert observed.shares(clients[1:2]) == 1


def test_weights_are_shares_over_availability() -> None:
    """Client 1 is there in the second of two rounds."""
    rounds = Rounds(make("cafed"))
    play(rounds, [0])
    before, p = rounds.strategy.weights.copy(), SIZES / SIZES.sum()
    moved = play(rounds, [0, 1]) - before
    np.testing.assert_allclose(moved, p[0] * delta(0, 2) + p[1] / 0.5 * delta(1, 2), rtol=1e-12)


def test_a_rare_client_with_a_large_loss_counts_only_where_bias_matters() -> None:
    """Client 4 is there in spells: left out, it does one step for its loss, which moves nothing."""
    losses = dict.fromkeys(range(N), 1.0) | {4: 9.0}
    for bias, counts in ((0.1, False), (1e6, True)):
        rounds: Any = Rounds(make("cafed", bias=bias, local_steps=3))
        for t in range(12):
            online = range(N) if t % 6 < 2 else range(N - 1)
            rounds.play(dict.fromkeys(online, np.ones(M)), train_loss=losses)
        before, asked = rounds.strategy.weights.copy(), rounds.ask([4])
        assert asked[4].config["local-steps"] == (3 if counts else 1)
        after = rounds.hear((4, work(4, asked[4])))
        assert np.array_equal(before, after) is not counts
