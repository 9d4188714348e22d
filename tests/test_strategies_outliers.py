"""Replies that would end learning for good: refused, clipped or told, and what comes after them counts."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, THREE, M, N, NamedProxy, Rounds, delta, make, play, reply, work
from flwr.common import Code, EvaluateRes, Status

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


@pytest.mark.parametrize(("told", "leaves"), [(True, True), ("false", False), (1, False), (False, False)])
def test_only_true_announces_a_departure(told: Any, leaves: bool) -> None:
    rounds = Rounds(make("fedavg"))
    play_with(rounds, delta(LAST, 1), departing=told)
    play(rounds)
    assert (LAST in rounds.strategy.report.active) != leaves


def test_personal_models_are_averaged_over_usable_reports() -> None:
    """Each unusable one is left out, and names or keys that make no sense are."""
    good = {"0": (0.0, 10, {"accuracy": 0.0}), "1": (0.5, 10, {"accuracy": 0.25, "x" * 10**6: 1.0})}
    odd = [float("nan"), float("inf"), 1e300]
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
