"""Event time, in which a round ends while others are at work: who is asked, who is waited for, who counts.

Exact trajectories are in test_golden_events.py, late replies in test_strategies_late.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes import FEDERATED, N, Rounds, make, play, work

from strategies import STRATEGIES

DROP = [name for name in FEDERATED if STRATEGIES[name].late_replies == "drop"]


def asked(rounds: Rounds, working: Sequence[int], **events: Any) -> list[int]:
    """Who of all clients is asked while some are at work; their replies do not come."""
    rounds.manager.working = working
    chosen = [*rounds.ask(range(N), **events)]
    rounds.hear()
    return chosen


@pytest.mark.parametrize("name", ["fedavg", "fedlaavg", "f3ast"])  # each has a selection of its own
def test_clients_at_work_take_places(name: str) -> None:
    limited, rounds = (Rounds(make(name, clients_per_round=3, round_ends=B)) for B in (1, 0))
    for working, places in (([], 3), ([0], 2), ([0, 4], 1), ([1, 2, 3], 0), ([0, 1, 2, 3], 0)):
        assert len(asked(limited, working)) == places
        assert len(asked(rounds, working)) == min(3, N - len(working))
    unlimited = Rounds(make(name, round_ends=1))
    assert asked(unlimited, [0, 4]) == [1, 2, 3]


@pytest.mark.parametrize(("departure", "withdrawn", "places"), [("exclude", ["1"], 2), ("include", [], 1)])
def test_nobody_waits_for_who_leaves_the_objective(departure: str, withdrawn: list[str], places: int) -> None:
    rounds = Rounds(make("mifa", clients_per_round=3, round_ends=1, departure=departure))
    manager = rounds.manager
    answer = work(1, rounds.ask(range(3))[1])
    rounds.hear()
    manager.working, manager.online, manager.departed = [1, 2], range(N), [1]
    told: Any = rounds.strategy.configure_fit(2, rounds.parameters, manager)
    assert told.withdrawn == withdrawn
    assert len(told) == places
    rounds.number = 2
    rounds.hear((1, answer))
    assert rounds.strategy.report.active.tolist() == ([] if withdrawn else [1])


@pytest.mark.parametrize("name", DROP)
def test_who_drops_late_replies_runs_only_where_none_is(name: str) -> None:
    for C, most, said in ((3, 3, "3"), (0, N, f"0, that is all {N}")):
        says = f"drops late replies, .* with round-ends {most - 1} and clients-per-round {said}: set"
        with pytest.raises(ValueError, match=says):
            make(name, round_ends=most - 1, clients_per_round=C)
        rounds = Rounds(make(name, round_ends=most, clients_per_round=C))
        play(rounds)
        assert len(rounds.strategy.report.active) == most


def test_the_limit_is_kept_while_mimic_warms_up() -> None:
    assert len(asked(Rounds(make("mimic", clients_per_round=3, round_ends=3, warm_up=True)), [])) == 3


def test_the_memory_at_clients_takes_no_late_replies() -> None:
    with pytest.raises(ValueError, match="FedLaAvgClientMemory drops late replies"):
        make("fedlaavg", round_ends=1, memory="client")


@pytest.mark.parametrize(("B", "first"), [(0, 3 / N), (2, 2 / N), (4, 3 / N)])
def test_f3ast_starts_with_the_rate_of_a_round(B: int, first: float) -> None:
    """r_0 = min(1, K / N) with K the replies of a round: B, or all that may be at work."""
    rounds = Rounds(make("f3ast", clients_per_round=3, round_ends=B))
    rounds.ask(range(N))
    assert rounds.strategy.rate(np.arange(N)) == pytest.approx(first)


def test_mifa_forgets_what_is_too_old() -> None:
    """Client 4 replies in round 1 only; with max-age 1 its entry counts in rounds 1 and 2."""
    rounds = Rounds(make("mifa", local_steps=1, max_age=1))
    moved = [rounds.play({k: np.full(9, float(k)) for k in there})[0] for there in ([0, 4], [0], [0], [0, 3])]
    np.testing.assert_allclose(np.diff([-1.0, *moved]), [2, 2, 0, 1.5])
    assert rounds.strategy.latest.clients.tolist() == [0, 3]
