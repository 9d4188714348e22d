"""No reply raises, breaks the weights, is unpickled or ends learning, whatever clients send.

Part of the contract of every strategy, see test_contract.py. `FEDTIDE_FUZZ_EXAMPLES=1000 pytest -k hostile`
plays that many federations with each of them.
"""

import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fakes import (
    FEDERATED,
    SIZES,
    THREE,
    M,
    N,
    NamedProxy,
    Rounds,
    delta,
    make,
    play,
    reply,
    same_state,
    stored,
    work,
)
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from hostile_rounds import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import STRATEGIES
from strategies.core.report import MAX_WARNINGS, RoundReport

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = int(os.environ.get("FEDTIDE_FUZZ_EXAMPLES", "8"))
checks = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=checks)
@given(rng=st.randoms(use_true_random=False))
def test_hostile_rounds(name: str, rng: Random, tmp_path: Path) -> None:
    run(name, rng, tmp_path / "unpickled")


# What the fuzz has found


def rejected(rounds: Rounds) -> list[tuple[str, str]]:
    return rounds.strategy.report.rejected


def answer(rounds: Rounds, changed: dict[int, Any]) -> np.ndarray:
    """A round in which some clients send something else than their work."""
    asked = rounds.ask(range(N))
    return rounds.hear(*((c, changed.get(c) or work(c, i)) for c, i in asked.items()))


def test_reasons_are_one_short_line() -> None:
    """Also where the client wrote them, and in the metrics and the log that are made of them."""
    rounds = Rounds(make("fedavg"))
    for text in ("x" * 10**6, "two\nlines \x1b[31m", "\ud800", "\n"):
        sent = FitRes(Status(Code.FIT_NOT_IMPLEMENTED, text), ndarrays_to_parameters([]), 1, {})
        answer(rounds, {2: sent})
        ((_, reason),) = rejected(rounds)
        assert reason.isprintable()
        assert 0 < len(reason) <= 210
        assert max(map(len, rounds.metrics)) <= 230
    logged: set[tuple[str, str]] = set()
    for number in range(3):
        reason = f"reason {number:b}".replace("1", "i")
        RoundReport(rejected=[(str(k), reason) for k in range(MAX_WARNINGS)]).warn(number, logged)
    assert len(logged) == MAX_WARNINGS


@pytest.mark.parametrize("name", THREE)
def test_a_round_is_aggregated_once(name: str) -> None:
    """A second time, nobody was asked; results for another round do not take its events away."""
    once, more = Rounds(make(name, range(4))), Rounds(make(name, range(4)))
    for rounds in (once, more):
        play(rounds)
        asked = rounds.ask(range(N), arrived=[4])
        results = [(client, work(client, instruction)) for client, instruction in asked.items()]
        if rounds is more:
            rounds.strategy.aggregate_fit(7, [(NamedProxy("0"), results[0][1])], [])
        rounds.hear(*results)
        assert [event["event"] for event in rounds.strategy.report.events].count("arrival") == 1
        if rounds is more:
            rounds.hear(*results)
            assert len(rejected(rounds)) == N
    np.testing.assert_array_equal(play(once), play(more))


@pytest.mark.parametrize("size", [1e17, 1e12])
@pytest.mark.parametrize("name", FEDERATED)
def test_learning_continues_though_the_culprit_never_returns(name: str, size: float) -> None:
    """One client moves by 1e17 in round 2, and is away from then on: nothing of it stays anywhere."""
    rounds, without = Rounds(make(name)), Rounds(make(name))
    for each in (rounds, without):
        play(each)
        asked = each.ask(range(N))
        results = [(client, work(client, asked[client])) for client in range(4)]
        huge = reply(asked[4], np.full(M, size), int(SIZES[4]))
        after = each.hear(*results, *([(4, huge)] if each is rounds else []))
    ((client, reason),) = rejected(rounds)
    assert (client, reason[:14]) == ("4", "update of norm")
    for _ in range(4):
        before, after = after, play(rounds, range(4))
        assert rounds.strategy.report.events == rejected(rounds) == []
        assert 0 < np.abs(after - before).max() < 1e4
        np.testing.assert_array_equal(after, play(without, range(4)))


@pytest.mark.parametrize(("name", "options"), [("fedavg", {"server_opt": "momentum"}), ("fedgate", {})])
def test_a_discarded_update_leaves_the_weights_and_the_layers(name: str, options: dict[str, str]) -> None:
    """A server rate of 1e17 makes too much of what is usual."""
    rounds = Rounds(make(name, server_rate=1e17, **options))
    before = rounds.strategy.weights.copy()
    states = [layer.state_dict() for layer in rounds.strategy.layers]
    for _ in range(2):
        np.testing.assert_array_equal(play(rounds), before)
        assert [event["event"] for event in rounds.strategy.report.events] == ["discarded update"]
        for layer, state in zip(rounds.strategy.layers, states, strict=True):
            same_state(layer.state_dict(), state)


def test_a_norm_becomes_usual_where_most_updates_have_it() -> None:
    """After 200 updates of almost nothing, `auto` would refuse everybody for ever."""
    rounds = Rounds(make("fedavg", max_update_norm="auto"))
    for _ in range(3):
        asked = rounds.ask(range(N))
        rounds.hear(*((c, reply(i, np.full(M, 1e-9))) for c, i in asked.items()))
    answer(rounds, {})
    assert rejected(rounds) == []


def test_a_farewell_is_over_with_its_round() -> None:
    """Where nobody aggregated the round in which a client was asked for its state, that is lost."""
    rounds = Rounds(make("fedlaavg", memory="client"))
    asked = rounds.ask(range(N))
    rounds.hear(*((c, reply(i, 0, arrays=[delta(c, 1)])) for c, i in asked.items()))
    rounds.ask(range(N), departed=[2])
    rounds.ask(range(N))
    strategy: Any = rounds.strategy
    assert strategy.orphans == 1
    assert stored(strategy.state_dict())["orphans"] == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e16])
def test_a_wrapper_that_breaks_the_weights_is_told(value: float) -> None:
    rounds = Rounds(make("fedavg"))
    rounds.parameters = ndarrays_to_parameters([a + value for a in rounds.parameters.arrays()])
    with pytest.raises(ValueError, match="a wrapper of the strategy returned are not finite"):
        rounds.ask(range(N))


def test_efl_recovers_from_a_large_fisher_reply() -> None:
    """A Fisher reply of 1e3 and elasticity 30: all diverge once, the term is dropped, and they are back."""
    rounds = Rounds(make("efl", elasticity=30.0))
    asked = rounds.ask(range(N))
    arrays = [*rounds.parameters.arrays(), np.full(M, 1e3), np.full(M, 1e3)]
    fisher = reply(asked[0], 0, int(SIZES[0]), arrays)
    rounds.hear((0, fisher))
    strategy: Any = rounds.strategy
    assert strategy.precision.max() == 1e3
    asked = rounds.ask(range(N))
    rounds.hear(*((c, reply(i, np.full(M, np.inf))) for c, i in asked.items()))
    assert [event["event"] for event in strategy.report.events] == ["elastic term dropped"]
    assert not strategy.precision.any()
    play(rounds)
    assert rejected(rounds) == []
