"""FedAsync and REFL's discount by hand. Exact trajectories are in test_golden_events.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import Rounds, make, play, reply
from flwr.common import FitRes, ndarrays_to_parameters

import strategies
from strategies import Roster


def begin(name: str, **options: Any) -> tuple[Rounds, dict[int, FitRes]]:
    """Four clients with a model of two weights, at (0, 0), that are asked; how they will answer.

    They move it by (2, 0), (4, 0), (8, 0) and (0, 8).
    """
    start, roster = ndarrays_to_parameters([np.zeros(2)]), Roster(np.full(4, 10))
    rounds = Rounds(strategies.make(name, start, roster, **options))
    moves = [(2.0, 0.0), (4.0, 0.0), (8.0, 0.0), (0.0, 8.0)]
    return rounds, {k: reply(i, moves[k], round=1) for k, i in rounds.ask(range(4)).items()}


def later(rounds: Rounds, answers: dict[int, FitRes], late: list[int], **on_time: float) -> np.ndarray:
    """A round in which these answer the first task, and then client 0 a new one; the new weights."""
    rounds.manager.working = [1, 2, 3]
    asked = rounds.ask(range(4))
    new = [(0, reply(asked[0], (on_time["moves"], 0.0), round=rounds.number))] if on_time else []
    return rounds.hear(*((client, answers[client]) for client in late), *new)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, (0.5, 0.5)),
        ({"staleness": "poly", "a": 1.0}, (1 / 4, 1 / 6)),  # 1/2 (1 + lag)^-1
        ({"staleness": "poly"}, (0.5 / 2**0.5, 0.5 / 3**0.5)),
        ({"staleness": "hinge", "a": 3.0, "b": 1}, (0.5, 1 / 8)),  # 1/2 / (3 (2 - 1) + 1)
        ({"staleness": "hinge", "b": 0}, (0.5 / 11, 0.5 / 21)),
    ],
)
def test_fedasync_mixes_in_what_comes(options: dict[str, Any], shares: tuple[float, float]) -> None:
    """Lags of 0, 1 and 2; a late model takes back what the others have changed."""
    rounds, answers = begin("fedasync", alpha=0.5, **options)
    w = rounds.hear((0, answers[0]))
    np.testing.assert_allclose(w, (1, 0))
    for client, share in zip((2, 3), shares, strict=True):
        moved = np.array([8.0, 0.0] if client == 2 else [0.0, 8.0])
        w, expected = later(rounds, answers, [client]), (1 - share) * w + share * moved
        np.testing.assert_allclose(w, expected, rtol=1e-6)


@pytest.mark.parametrize(("order", "expected"), [((0, 1), 2.5), ((1, 0), 2.0)])
def test_fedasync_takes_replies_as_they_came(order: tuple[int, int], expected: float) -> None:
    """0, 1, (1 + 4) / 2; 0, 2, (2 + 2) / 2."""
    rounds, answers = begin("fedasync", alpha=0.5)
    np.testing.assert_allclose(rounds.hear(*((k, answers[k]) for k in order)), (expected, 0))


def test_fedasync_refuses_what_is_too_old() -> None:
    rounds, answers = begin("fedasync", alpha=0.5, max_lag=1)
    rounds.hear((0, answers[0]))
    w = later(rounds, answers, [1])
    np.testing.assert_array_equal(later(rounds, answers, [2]), w)
    too_old = "late reply of round 1: its lag is 2, max-lag is 1"
    assert rounds.strategy.report.rejected == [("2", too_old)]


@pytest.mark.parametrize("buffer", [1, 3])  # all at once; or the late ones wait for the other
def test_refl_counts_what_differs(buffer: int) -> None:
    """F = (4, 0), so that L_2 = 16 and L_3 = 80, of a lag of 1: .65 / 2 + .35 (1 - exp(-L / 80))."""
    rounds, answers = begin("fedbuff", discount="refl", buffer=1)
    w = rounds.hear((0, answers[0]))
    np.testing.assert_allclose(w, (2, 0))
    rounds.strategy.options = replace(rounds.strategy.options, buffer=buffer)
    if buffer == 1:
        w = later(rounds, answers, [2, 3], moves=4.0)
    else:
        np.testing.assert_array_equal(later(rounds, answers, [2, 3]), w)
        w = later(rounds, answers, [], moves=4.0)
    s = 0.65 / 2 + 0.35 * (1 - np.exp([-0.2, -1.0]))
    expected = np.array([2, 0]) + np.array([4 + 8 * s[0], 8 * s[1]]) / (1 + s.sum())
    np.testing.assert_allclose(w, expected)


def test_refl_without_anything_to_compare_with() -> None:
    """Both count alike: the step is their mean, whatever the discount."""
    rounds, answers = begin("fedbuff", discount="refl", buffer=1)
    rounds.hear((0, answers[0]))
    np.testing.assert_allclose(later(rounds, answers, [2, 3]), (2 + 4, 4))


def test_a_new_model_to_start_from_drops_the_replies_that_wait() -> None:
    """They are about the model before, of which late replies are refused, too."""
    rounds = Rounds(make("fedbuff", buffer=2))
    strategy: Any = rounds.strategy
    play(rounds, [0])
    before = strategy.weights.copy()
    strategy.on_restart()
    np.testing.assert_array_equal(play(rounds, [1]), before)
    assert not np.array_equal(play(rounds, [2]), before)
