"""Replies that would end learning for good are refused, clipped or reported; what comes after them counts."""

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
from flwr.common import Code, EvaluateRes, FitRes, Status, ndarrays_to_parameters

from strategies.core.round import MAX_WARNINGS, RoundReport

pytestmark = pytest.mark.filterwarnings("ignore")

HONEST = range(N - 1)
LAST = N - 1


def play_with(rounds: Rounds, change: Any, n: int = int(SIZES[LAST]), **metrics: Any) -> None:
    """A round in which the last client moves by `change`, and the others do their work."""
    asked = rounds.ask(range(N))
    results = [(client, work(client, asked[client])) for client in HONEST]
    rounds.hear(*results, (LAST, reply(asked[LAST], change, n, **metrics)))


def rejected(rounds: Rounds) -> list[tuple[str, str]]:
    return rounds.strategy.report.rejected


@pytest.mark.parametrize("name", THREE)
def test_incomplete_work_is_not_scaled_beyond_all_bounds(name: str) -> None:
    """A tenth of the work with an update of 9e11 would become 9e12."""
    rounds = Rounds(make(name, local_steps=10))
    play_with(rounds, np.full(M, 3e11), steps=1)
    assert rejected(rounds) == [(str(LAST), "update of norm 9e+11, more than 1e+11")]
    play(rounds)
    assert rejected(rounds) == []


@pytest.mark.parametrize("name", THREE)
def test_nobody_claims_much_more_data_than_at_first(name: str) -> None:
    rounds = Rounds(make(name, local_epochs=1, batch_size=10))
    first = int(SIZES[LAST])
    play_with(rounds, delta(LAST, 1), n=10**12, steps=1)
    reason = f"1000000000000 examples, more than 10 times the {first} that it had first"
    assert rejected(rounds) == [(str(LAST), reason)]
    for n in (5 * first, 10 * first):
        play_with(rounds, delta(LAST, 1), n=n)
        assert rejected(rounds) == []
    play_with(rounds, delta(LAST, 1), n=10 * first + 1)  # not ten times more with every reply
    assert [client for client, _ in rejected(rounds)] == [str(LAST)]


def test_outliers_are_told() -> None:
    rounds = Rounds(make("fedavg"))
    play(rounds)
    play_with(rounds, np.full(M, 1e3))
    (event,) = rounds.strategy.report.events
    assert (event["event"], event["client"]) == ("outlier", LAST)
    assert event["update_norm"] == pytest.approx(3e3)
    assert event["update_norm"] > 20 * event["median"]
    assert LAST in rounds.strategy.report.active


@pytest.mark.parametrize("limit", ["auto", "100"])
def test_outliers_are_refused(limit: str) -> None:
    """What is refused is as if it had not come, and does not count for the median."""
    with_it, without = (Rounds(make("mifa", max_update_norm=limit)) for _ in range(2))
    for rounds in (with_it, without):
        play(rounds)
    for _ in range(8):
        play_with(with_it, np.full(M, 1e3))
        assert with_it.strategy.report.active.tolist() == list(HONEST)
        ((client, reason),) = rejected(with_it)
        assert client == str(LAST)
        assert reason.startswith("update of norm 3e+03, more than")
        play(without, HONEST)
    np.testing.assert_array_equal(play(with_it), play(without))


def test_in_the_first_round_the_others_are_the_measure() -> None:
    rounds = Rounds(make("fedavg", max_update_norm="auto"))
    play_with(rounds, np.full(M, 1e6))
    assert [client for client, _ in rejected(rounds)] == [str(LAST)]


def test_personal_models_are_no_reason_not_to_clip() -> None:
    make("apfl", max_update_norm="6", outliers="clip")


def test_outliers_are_clipped() -> None:
    """Along their direction, to the limit."""
    rounds = Rounds(make("fedavg", max_update_norm="6", outliers="clip"))
    before = rounds.strategy.weights.copy()
    asked = rounds.ask([LAST])
    rounds.hear((LAST, reply(asked[LAST], np.full(M, 1e3), int(SIZES[LAST]))))
    np.testing.assert_allclose(rounds.strategy.weights - before, np.full(M, 2.0), rtol=1e-12)
    (event,) = rounds.strategy.report.events
    assert (event["event"], event["limit"]) == ("clipping", 6)
    assert rounds.strategy.report.active.tolist() == [LAST]


def test_the_median_is_part_of_the_state() -> None:
    before, after = (Rounds(make("fedavg", max_update_norm="auto")) for _ in range(2))
    play(before)
    after.strategy.load_state_dict(stored(before.strategy.state_dict()))
    after.parameters, after.number = after.strategy.initialize_parameters(after.manager), before.number
    for rounds in (before, after):
        asked = rounds.ask([0])
        rounds.hear((0, reply(asked[0], np.full(M, 1e6), int(SIZES[0]))))
        assert [client for client, _ in rejected(rounds)] == ["0"]


@pytest.mark.parametrize(("told", "leaves"), [(True, True), ("false", False), (1, False), (False, False)])
def test_only_true_announces_a_departure(told: Any, leaves: bool) -> None:
    rounds = Rounds(make("fedavg"))
    play_with(rounds, delta(LAST, 1), departing=told)
    play(rounds)
    assert (LAST in rounds.strategy.report.active) != leaves


def test_personal_models_are_averaged_over_usable_reports() -> None:
    """Each unusable one is left out, and names or keys that make no sense are."""
    single = {"accuracy": np.float32(0.25), "x" * 10**6: 1.0}
    good = {"0": (0, 10.0, {"accuracy": 0}), "1": (np.float32(0.5), np.int64(10), single)}
    odd = [float("nan"), float("inf"), 1e300, True]
    bad = [(value, 10, {"accuracy": 1.0}) for value in odd] + [(0.5, 10, {"accuracy": v}) for v in odd]
    bad += [(0.5, "10", {"accuracy": 1.0}), (0.5, 10**400, {"accuracy": 1.0}), (0.5, 10, None)]
    for told in [*bad, None]:
        reports: dict[str, Any] = (
            {**good, "2": told} if told else {**good, "ghost": (0.5, 10, {"accuracy": 1.0})}
        )
        results = [(NamedProxy(k), EvaluateRes(Status(Code.OK, ""), *told)) for k, told in reports.items()]
        loss, measured = make("apfl").aggregate_evaluate(1, results, [])
        assert loss == 0.25
        assert measured == {"accuracy": 0.125, "tested-examples": 20, "tested-clients": 2}


# What the fuzz of test_strategies_fuzz.py has found


def test_reasons_are_one_short_line() -> None:
    """Also where the client wrote them, and in the metrics and the log that are made of them."""
    rounds = Rounds(make("fedavg"))
    for text in ("x" * 10**6, "two\nlines \x1b[31m", "\ud800", "\n"):
        rounds.ask(range(N))
        rounds.hear((2, FitRes(Status(Code.FIT_NOT_IMPLEMENTED, text), ndarrays_to_parameters([]), 1, {})))
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
    play(rounds)
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
