"""Clients without data: part of no sum, no mean and no N, until they have some."""

from typing import Any

import numpy as np
import pytest
from fakes import START, M, Rounds, delta, reply
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Roster

SIZES = np.array([10, 20, 30, 0])  # the last one has no data
N = len(SIZES)


def begin(name: str, members: Any = range(N), **options: Any) -> Rounds:
    roster = Roster(SIZES, np.isin(np.arange(N), list(members)))
    options = {"local_steps": 1, **options}
    return Rounds(strategies.make(name, ndarrays_to_parameters(START), roster, **options))


def play(rounds: Rounds, online: Any = range(N), sizes: Any = SIZES, **events: Any) -> np.ndarray:
    """A round in which everybody who is asked replies with what it has."""
    asked = rounds.ask(online, **events)
    return rounds.hear(*((c, reply(i, delta(c, rounds.number), int(sizes[c]))) for c, i in asked.items()))


def members(rounds: Rounds) -> np.ndarray:
    return np.flatnonzero(rounds.strategy.roster.contributors)


def vectors(rounds: Rounds) -> np.ndarray:
    """What the method keeps of each member with data: c_i of SCAFFOLD and MimiC, delta_j of FedGATE."""
    strategy: Any = rounds.strategy
    table = getattr(strategy, "corrections", None) or getattr(strategy, "tracked", None) or strategy.table
    return table.read(members(rounds))


def check(rounds: Rounds, name: str) -> None:
    mean = vectors(rounds).mean(axis=0)
    expected = rounds.strategy.control if name == "scaffold" else np.zeros(M)  # type: ignore[attr-defined]
    np.testing.assert_allclose(mean, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["scaffold", "mimic", "fedgate"])
def test_coming_and_going_without_data_changes_nothing(name: str) -> None:
    rounds = begin(name, members=range(N - 1))
    play(rounds, [0, 1, 2])
    play(rounds, [0, 1], departed=[2])  # what it passes on, a client without data does not get
    before = vectors(rounds)
    assert np.abs(before).max() > 0.01
    for events in ({"arrived": [3]}, {"departed": [3]}):
        play(rounds, [], **events)
        np.testing.assert_array_equal(vectors(rounds), before)
        check(rounds, name)


@pytest.mark.parametrize("name", ["scaffold", "mimic", "fedgate"])
def test_one_that_gets_data_is_a_new_member(name: str) -> None:
    rounds = begin(name)
    play(rounds)
    play(rounds, [0, 1], departed=[2])
    play(rounds, [0, 1, 3])
    assert rounds.strategy.report.rejected == [("3", "no examples")]
    for _ in range(2):
        play(rounds, [1, 3], sizes=np.array([10, 20, 30, 40]))
        assert rounds.strategy.report.rejected == []
        assert members(rounds).tolist() == [0, 1, 3]
        check(rounds, name)


@pytest.mark.parametrize("name", ["scaffold", "amplified-scaffold"])
def test_c_is_that_of_the_task_where_a_reply_changes_n(name: str) -> None:
    """By hand, with eta = 1 and one step: c_i+ is the raw gradient, whoever else turns out to have data."""
    options = {"period": 1, "gamma": 1.0} if name == "amplified-scaffold" else {}
    rounds = begin(name, learning_rate=1.0, **options)
    rounds.play({0: np.full(M, -1.0), 1: np.full(M, -3.0)})  # c_0 = 1, c_1 = 3, c = 4 / 3
    asked = rounds.ask([0, 3])
    # Client 0 steps by -(5 - 1 + c), client 3, which has got data, by -(7 - 0 + c).
    sent = (reply(asked[0], np.full(M, -4 - 4 / 3), 10), reply(asked[3], np.full(M, -7 - 4 / 3), 10))
    rounds.hear((0, sent[0]), (3, sent[1]))
    table: Any = rounds.strategy.table  # type: ignore[attr-defined]
    np.testing.assert_allclose(table.read(np.array([0, 3])), [[5.0] * M, [7.0] * M], rtol=1e-6)


@pytest.mark.parametrize("name", ["scaffold", "mimic", "fedgate", "mifa", "fedlaavg"])
def test_one_that_says_so_is_not_counted(name: str) -> None:
    """Also if it was registered with data, as long as no reply of it has counted."""
    told, without = begin(name), begin(name, members=[0, 1])
    moved = []
    for rounds, first in ((told, range(N)), (without, [0, 1])):
        play(rounds, first, sizes=np.array([10, 20, 0, 0]))
        assert members(rounds).tolist() == [0, 1]
        before = rounds.strategy.weights.copy()
        moved.append(play(rounds, [0]) - before)
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-9)


def test_one_that_has_contributed_stays() -> None:
    """A reply with 0 examples is then as if none had come: what it contributed came from data."""
    rounds = begin("scaffold")
    play(rounds)
    before = vectors(rounds)
    play(rounds, [2], sizes=np.zeros(N, int))
    np.testing.assert_array_equal(vectors(rounds), before)
    assert members(rounds).tolist() == [0, 1, 2]


def test_mifa_does_not_wait_for_a_client_without_data() -> None:
    """Nobody knew: the client itself says that it has nothing."""
    start = ndarrays_to_parameters(START)
    rounds = Rounds(strategies.make("mifa", start, Roster(np.full(N, 10)), first_round="wait"))
    before = rounds.strategy.weights.copy()
    assert not np.array_equal(play(rounds), before)


def test_scheme_a_does_not_count_it_in_n() -> None:
    """N p_k / K with N = 3: all three complete clients of four members count as in FedAvg."""
    rounds, fedavg = begin("scheme-a"), begin("fedavg")
    np.testing.assert_allclose(play(rounds, [0, 1, 2]), play(fedavg, [0, 1, 2]), rtol=1e-12)
