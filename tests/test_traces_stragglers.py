"""Stragglers: clients that do fewer epochs than they are asked for."""

import numpy as np

from traces import finished_steps
from traces.patterns.stragglers import Stragglers


def test_a_share_of_the_clients_does_a_uniform_number_of_epochs():
    trace = Stragglers(2000, 0, share=0.9, epochs=5)
    rounds = [trace.round(t) for t in range(1, 11)]
    assert all(now.member.all() and now.online.all() for now in rounds)
    steps = np.concatenate([finished_steps(now.completion, 5) for now in rounds])
    counts = np.bincount(steps, minlength=6)
    assert counts[0] == 0
    expected = np.array([0.18, 0.18, 0.18, 0.18, 0.18 + 0.1]) * 20_000  # of the epochs 1 to 5
    assert np.abs(counts[1:] - expected).max() < 5 * np.sqrt(expected.max())


def test_a_client_is_a_straggler_in_some_rounds_only():
    trace = Stragglers(50, 1, share=0.5, epochs=20)
    often = np.mean([trace.round(t).completion < 1 for t in range(1, 401)], axis=0)
    assert np.abs(often - 0.5 * 19 / 20).max() < 5 * 0.5 / 20


def test_no_stragglers():
    assert (Stragglers(9, 0, share=0.0).round(3).completion == 1).all()
    assert (Stragglers(9, 0, share=1.0, epochs=1).round(3).completion == 1).all()
