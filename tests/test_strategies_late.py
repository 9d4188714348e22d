"""Replies that arrive in a later round than that of their task: taken, or as if they had not come.

The first test is part of the contract of every strategy; three methods stand for all in the others.
"""

from typing import Any

import numpy as np
import pytest
from fakes import FEDERATED, SIZES, N, Rounds, delta, make, play, reply, work
from flwr.common import FitRes, ndarrays_to_parameters

import strategies
from strategies import STRATEGIES, Roster
from strategies.core.options import Geometric

# Takes late replies; has its clients start from other models, too; drops them, with memory at the clients.
three_methods = pytest.mark.parametrize("name", ["mifa", "fedawe", "feddyn"])

TAKE = sorted(name for name in FEDERATED if STRATEGIES[name].late_replies == "take")


def test_who_takes_late_replies() -> None:
    taking = [
        "f3ast",
        "fedasync",
        "fedau",
        "fedawe",
        "fedbuff",
        "fedlaavg",
        "fedstale",
        "fedvarp",
        "focus",
        "mifa",
    ]
    assert taking == TAKE
    in_event_time = [name for name in FEDERATED if STRATEGIES[name].late_replies == "event-time"]
    assert in_event_time == ["fedavg", "fedsgd", "scheme-a", "scheme-b", "scheme-c", "fednova", "fedprox"]


def begin(name: str, **options: Any) -> tuple[Rounds, FitRes]:
    """Three rounds in which client 2 answers the first task on time and is at work on the second one.

    Returns the rounds, and what it will answer.
    """
    rounds = Rounds(make(name, **options))
    play(rounds)
    asked = rounds.ask(range(N))
    answer = work(2, asked[2])
    rounds.hear(*((c, work(c, i)) for c, i in asked.items() if c != 2))
    rounds.manager.working = [2]
    play(rounds)
    return rounds, answer


def end(rounds: Rounds, *late: tuple[int, FitRes], **events: Any) -> np.ndarray:
    """A round in which those who are asked answer, and others answer an earlier task."""
    asked = rounds.ask(range(N), **events)
    return rounds.hear(*((c, work(c, i)) for c, i in asked.items()), *late)


@pytest.mark.parametrize("name", FEDERATED)
def test_late_reply_counts_or_is_as_if_it_had_not_come(name: str) -> None:
    (late, answer), (silent, _) = begin(name), begin(name)
    weights, without = end(late, (2, answer)), end(silent)
    report = late.strategy.report
    if name in TAKE:
        assert report.late == [{"client": 2, "task": 2, "lag": 2}]
        assert report.active.tolist() == [0, 1, 2, 3, 4]
        assert report.rejected == []
        assert not np.array_equal(weights, without)
    else:
        reason = f"late reply of round 2: {type(late.strategy).__name__} takes none"
        assert report.rejected == [("2", reason)]
        assert report.late == []
        assert report.active.tolist() == [0, 1, 3, 4]
        np.testing.assert_array_equal(weights, without)
    late.manager.working = silent.manager.working = []
    after, expected = play(late), play(silent)
    assert late.strategy.report.active.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(after, expected) is (name not in TAKE)


@three_methods
def test_late_reply_that_is_lost(name: str) -> None:
    """The client is free again; what comes later is an answer to nothing."""
    (late, answer), (silent, _) = begin(name), begin(name)
    late.manager.working = silent.manager.working = []
    asked = late.ask(range(N))
    assert 2 in asked
    late.hear(*((c, work(c, i)) for c, i in asked.items() if c != 2), (2, answer))
    asked = silent.ask(range(N))
    silent.hear(*((c, work(c, i)) for c, i in asked.items() if c != 2))
    assert late.strategy.report.rejected == [("2", "late reply of round 2")]
    np.testing.assert_array_equal(play(late), play(silent))


@three_methods
def test_copy_of_a_reply_that_counted(name: str) -> None:
    """That client 2 is still at work on a task does not let client 3 answer it once more."""
    again, silent = Rounds(make(name)), Rounds(make(name))
    asked = again.ask(range(N))
    replies = [(c, work(c, i)) for c, i in asked.items() if c != 2]
    again.hear(*replies)
    silent.ask(range(N))
    silent.hear(*replies)
    again.manager.working = silent.manager.working = [2]
    again.ask([0, 1])
    copy = dict(replies)[3]
    again.hear((3, copy))
    silent.ask([0, 1])
    silent.hear()
    assert again.strategy.report.rejected == [("3", "was not asked in this round")]
    np.testing.assert_array_equal(again.strategy.weights, silent.strategy.weights)


@three_methods
def test_late_goodbye(name: str) -> None:
    """The client was asked nothing since, so it has not come back since."""
    rounds, answer = begin(name)
    answer.metrics["departing"] = True
    end(rounds, (2, answer))
    rounds.manager.working = []
    asked = rounds.ask(range(N))
    assert 2 not in asked or asked[2].config.get("farewell")
    assert rounds.strategy.report.events[0]["event"] == "departure"


# What it counts, by hand: client 2 did not answer in rounds 2 and 3, and answers round 2's task in round 4.


p = SIZES / SIZES.sum()


@pytest.mark.parametrize(
    ("name", "options", "on_time", "late"),
    [
        # The weights have changed twice since: (1 + 2)^-a
        ("fedbuff", {"staleness": 2.0}, 1 / 5, 1 / 9 / 5),
        ("fedbuff", {"max_lag": 1}, 1 / 4, 0),
        # G_2 = -delta / eta_2, applied with eta_4 = eta_2 / 4
        ("mifa", {}, 1 / N, 1 / 4 / N),
        ("fedlaavg", {"units": "gradient", "weights": "none"}, 1 / N, 1 / 4 / N),
        ("fedlaavg", {"units": "update", "weights": "none"}, 1 / N, 1 / N),
        ("focus", {"gradient": "last"}, p, p / 4),
        # All clients reply, so that the old updates cancel out: the weighted mean
        ("fedvarp", {"units": "gradient"}, p, p / 4),
        ("fedvarp", {"units": "update"}, p, p),
        # In event time like the others
        *((name, {"round_ends": 1}, p, p) for name in ("fedavg", "fedprox", "fednova", "scheme-c")),
    ],
)
def test_what_a_late_reply_counts(name: str, options: dict[str, Any], on_time: Any, late: Any) -> None:
    general = {"local_steps": 1, "lr_schedule": Geometric(factor=0.5)}
    rounds, answer = begin(name, **general, **options)
    before = rounds.strategy.weights.copy()
    moved = end(rounds, (2, answer)) - before
    on_time, late = np.broadcast_to(on_time, N), np.broadcast_to(late, N)
    expected = sum(on_time[k] * delta(k, 4) for k in (0, 1, 3, 4)) + late[2] * delta(2, 2)
    np.testing.assert_allclose(moved, expected, rtol=1e-9)
    too_old = [("2", "late reply of round 2: its lag is 2, max-lag is 1")] if "max_lag" in options else []
    assert rounds.strategy.report.rejected == too_old


def test_fedawe_counts_an_update_from_what_the_client_was_sent() -> None:
    """Client 2 starts from x_1 = 1, without data so far; the newest model is x_2 = 3 when it replies."""
    start = ndarrays_to_parameters([np.zeros(1)])
    roster = Roster(np.array([10, 10, 0]))
    rounds = Rounds(strategies.make("fedawe", start, roster, evaluate="newest"))
    assert rounds.play({0: 1.0, 1: 1.0}) == 1
    asked = rounds.ask(range(3))
    answer = reply(asked[2], 0.5, round=2)
    assert rounds.hear(*((client, reply(asked[client], 2.0)) for client in (0, 1))) == 3
    rounds.manager.working = [2]
    asked = rounds.ask([0, 1])
    after = rounds.hear(*((client, reply(asked[client], 0.0)) for client in (0, 1)), (2, answer))
    np.testing.assert_allclose(after, 3 + 0.5 / 3)
