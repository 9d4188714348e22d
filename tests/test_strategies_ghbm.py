"""GHBM: what momentum clients are sent; its trajectories are among the golden ones."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, N, Rounds, delta, make, play, reply, work
from flwr.common import FitIns, parameters_to_ndarrays

RATE = 0.1


def momentum(instruction: FitIns, steps: int) -> np.ndarray:
    """beta v, shape (M,): what `steps` steps with the correction add to the model where y stays w."""
    arrays = parameters_to_ndarrays(instruction.parameters)[len(START) :]
    return -RATE * steps * arrays[0] if arrays else np.zeros(M)


def test_window_by_hand() -> None:
    """tau = 2: updates 1, 2, none, 3 of all entries make v = 0, 0, 3/2, 3/2, 5/2, or end in 1, 3/2."""
    for count, later in (("changes", (1.5, 2.5)), ("rounds", (1.0, 1.5))):
        rounds = Rounds(make("ghbm", tau=2, beta=0.5, count=count, learning_rate=RATE, local_steps=4))
        found = []
        for update in (1, 2, None, 3, 0):
            asked = rounds.ask([0, 3])
            assert asked[0].config["strength"] == 0
            found.append(momentum(asked[0], 4))
            np.testing.assert_array_equal(found[-1], momentum(asked[3], 4))
            there = {} if update is None else asked
            rounds.hear(*((client, reply(i, np.full(M, update))) for client, i in there.items()))
        expected = [0, 0, 1.5, *later]
        np.testing.assert_allclose(found, 0.5 * np.outer(expected, np.ones(M)), atol=1e-12)


def test_in_cycles_of_tau_rounds_own_is_window() -> None:
    groups: list[list[int]] = [[0, 1], [2, 3], [4]]
    window = Rounds(make("ghbm", tau=3, learning_rate=RATE, local_steps=4))
    own = Rounds(make("ghbm", anchor="own", share=1 / 3, learning_rate=RATE, local_steps=4))
    for number in range(9):
        asked = [rounds.ask(groups[number % 3]) for rounds in (window, own)]
        for client in groups[number % 3]:
            sent = [momentum(instructions[client], 4) for instructions in asked]
            np.testing.assert_allclose(sent[1], sent[0], rtol=1e-9)
            assert sent[0].any() == (number >= 3)
        for rounds, instructions in zip((window, own), asked, strict=True):
            rounds.hear(*((client, work(client, i)) for client, i in instructions.items()))


def test_momentum_of_a_round_does_not_depend_on_the_steps() -> None:
    """Two epochs in batches of 10 are 2, 4, 6, 8 and 10 steps: each adds beta v in all of them."""
    options: dict[str, Any] = {"learning_rate": RATE, "local_epochs": 2, "batch_size": 10}
    for own in ({"tau": 1}, {"anchor": "own"}):
        rounds = Rounds(make("ghbm", **options, **own))
        play(rounds)
        asked = rounds.ask(range(N))
        sent = [momentum(asked[k], 2 * int(SIZES[k]) // 10) for k in range(N)]
        assert sent[0].any()
        np.testing.assert_allclose(sent, np.tile(sent[0], (N, 1)))


@pytest.mark.parametrize("anchor", ["own", "local"])
def test_a_lost_reply_sets_no_anchor(anchor: str) -> None:
    """v = C (w - a), a the model that client 0 was sent in round 1, or its own at the end of that round."""
    rounds = Rounds(make("ghbm", anchor=anchor, share=0.5, beta=1.0, learning_rate=RATE, local_steps=4))
    start = rounds.strategy.weights.copy()
    play(rounds)
    asked = rounds.ask(range(N))
    rounds.hear(*((client, work(client, asked[client])) for client in range(1, N)))
    before, instruction = rounds.strategy.weights.copy(), rounds.ask(range(N))[0]
    a = start + (delta(0, 1) if anchor == "local" else 0)
    np.testing.assert_allclose(momentum(instruction, 4), 0.5 * (before - a), rtol=1e-9)
    assert instruction.config["strength"] == (pytest.approx(-0.5 / (RATE * 4)) if anchor == "local" else 0)
