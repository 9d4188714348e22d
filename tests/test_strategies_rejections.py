"""Replies that do not count: each is named with its reason, and is as if it had not come.

One decoder reads the replies of all methods, so that three of them stand for all.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import START, THREE, M, N, Rounds, delta, make, play, reply, work
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from hostile_replies import claims, header, saved

three_methods = pytest.mark.parametrize("name", THREE)

Spoil = Callable[[FitRes, FitIns], None]  # turns a good reply into one that does not count


def vector(index: int, value: float) -> Spoil:
    """One weight of the reply is `value`."""

    def spoil(result: FitRes, instruction: FitIns) -> None:
        change = delta(2, 2)
        change[index] = value
        result.parameters = reply(instruction, change).parameters

    return spoil


def arrays(*sent: Any) -> Spoil:
    def spoil(result: FitRes, instruction: FitIns) -> None:
        result.parameters = ndarrays_to_parameters(list(sent))

    return spoil


def tensors(first: bytes) -> Spoil:
    """The bytes of the first tensor are not what NumPy makes of an array of numbers."""

    def spoil(result: FitRes, instruction: FitIns) -> None:
        result.parameters = Parameters([first, *result.parameters.tensors[1:]], "numpy.ndarray")

    return spoil


def metrics(**values: Any) -> Spoil:
    return lambda result, instruction: result.metrics.update(values)


def examples(count: Any) -> Spoil:
    return lambda result, instruction: setattr(result, "num_examples", count)


def status(code: Code, message: str = "") -> Spoil:
    return lambda result, instruction: setattr(result, "status", Status(code, message))


BAD: dict[str, tuple[Spoil, str]] = {
    "nan": (vector(0, np.nan), "weights are not finite"),
    "infinite": (vector(M - 1, np.inf), "weights are not finite"),
    "minus-infinite": (vector(4, -np.inf), "weights are not finite"),
    "exploded": (vector(4, -1e30), r"update of norm 1e\+30, more than 1e\+12"),
    "far-away": (vector(4, 1.1e12), r"update of norm 1\.1e\+12, more than 1e\+12"),
    "other-shape": (arrays(START[0].T, *START[1:]), "arrays of shapes .* are expected"),
    "other-sizes": (arrays(np.zeros(9), *START[1:]), "arrays of shapes .* are expected"),
    "too-few-arrays": (arrays(*START[:-1]), "arrays of shapes .* are expected"),
    "too-many-arrays": (arrays(*START, np.zeros(3)), "5 arrays where 4 (or 6 )?are expected"),
    "no-arrays": (arrays(), "arrays of shapes .* are expected"),
    "integers": (arrays(*(a.astype(np.int64) for a in START)), "weights of type int64"),
    "complex": (arrays(START[0] + 1j, *START[1:]), "array of type complex128"),
    "text": (arrays(np.full((2, 3), "1.5"), *START[1:]), "array of type <U3"),
    "records": (arrays(np.zeros((2, 3), [("a", "f8")]), *START[1:]), "array of type "),
    "dates": (arrays(np.zeros((2, 3), "datetime64[s]"), *START[1:]), "array of type "),
    "text-after-the-weights": (arrays(*START, np.array("x")), "array of type <U1"),
    "pickle": (tensors(saved(np.full((2, 3), None))), "weights are not NumPy arrays"),
    "archive": (tensors(saved(START[0], np.savez)), "weights are not NumPy arrays"),
    "junk": (tensors(b"junk"), "weights are not NumPy arrays"),
    "nothing": (tensors(b""), "weights are not NumPy arrays"),
    "cut-off": (tensors(saved(START[0])[:-1]), "weights are not NumPy arrays"),
    "open-header": (tensors(header("{'descr': '<f8', ")), "weights are not NumPy arrays"),
    "mixed-header": (tensors(header("{1: 2, 'a': 3}")), "weights are not NumPy arrays"),
    "vast-header": (tensors(claims("'<f8'", f"({10**30},)")), "weights are not NumPy arrays"),
    "no-metrics": (lambda result, _: setattr(result, "metrics", None), "without status, or whose metrics"),
    "no-status": (lambda result, _: setattr(result, "status", None), "without status, or whose metrics"),
    "examples-true": (examples(True), "impossible number of examples True"),
    "negative-examples": (examples(-1), "impossible number of examples -1"),
    "no-examples": (examples(0), "no examples"),
    "huge-examples": (examples(2**62), "impossible number of examples 4611686018427387904"),
    "half-an-example": (examples(2.5), r"impossible number of examples 2\.5"),
    "examples-as-text": (examples("10"), "impossible number of examples '10'"),
    "too-many-steps": (metrics(steps=4), "impossible number of steps 4 of "),
    "negative-steps": (metrics(steps=-1), "impossible number of steps -1 of "),
    "no-steps": (metrics(steps=0), "no local steps"),
    "fractional-steps": (metrics(steps=1.5), r"impossible number of steps 1\.5 of "),
    "steps-infinite": (metrics(steps=float("inf")), "impossible number of steps inf of "),
    "negative-steps-as-float": (metrics(steps=-1.0), "impossible number of steps -1 of "),
    "steps-nan": (metrics(steps=float("nan")), "impossible number of steps nan of "),
    "steps-true": (metrics(steps=True), "impossible number of steps True of "),
    "steps-as-text": (metrics(steps="1"), "impossible number of steps '1' of "),
    "late": (metrics(round=1), "late reply of round 1"),
    "early": (metrics(round=3), "late reply of round 3"),
    "round-as-text": (metrics(round="2"), "late reply of round '2'"),
    "failed": (status(Code.FIT_NOT_IMPLEMENTED, "no fit here"), "no fit here"),
    "failed-silently": (status(Code.GET_PARAMETERS_NOT_IMPLEMENTED), "status GET_PARAMETERS_NOT_IMPLEMENTED"),
}


@three_methods
@pytest.mark.parametrize("kind", BAD)
def test_bad_reply_is_as_if_it_had_not_come(name: str, kind: str) -> None:
    """Client 2 sends it in round 2, or nothing; in round 3 it is well again."""
    spoil, reason = BAD[kind]
    bad, silent = (Rounds(make(name, local_steps=3, departure="auto", num_rounds=9)) for _ in range(2))
    for rounds in (bad, silent):
        play(rounds)
        asked = rounds.ask(range(N))
        results = {client: work(client, instruction) for client, instruction in asked.items()}
        if rounds is bad:
            spoil(results[2], asked[2])
        else:
            del results[2]
        rounds.hear(*results.items())
        assert rounds.strategy.report.active.tolist() == [0, 1, 3, 4]
    ((client, message),) = bad.strategy.report.rejected
    assert client == "2"
    assert re.search(reason, message)
    assert silent.strategy.report.rejected == []
    np.testing.assert_array_equal(bad.strategy.weights, silent.strategy.weights)
    np.testing.assert_array_equal(play(bad), play(silent))
    np.testing.assert_array_equal(play(bad, [0], departed=[2]), play(silent, [0], departed=[2]))
    assert bad.strategy.report.events == silent.strategy.report.events


@three_methods
@pytest.mark.parametrize("stranger", ["4", "ghost", "-1", "99"])
def test_reply_of_a_client_that_was_not_asked(name: str, stranger: str) -> None:
    with_it, without = Rounds(make(name)), Rounds(make(name))
    for rounds in (with_it, without):
        play(rounds)
        asked = rounds.ask(range(4))
        results = [(client, work(client, instruction)) for client, instruction in asked.items()]
        rounds.hear(*results, *([(stranger, work(1, asked[1]))] if rounds is with_it else []))
    assert with_it.strategy.report.rejected == [(stranger, "was not asked in this round")]
    np.testing.assert_array_equal(with_it.strategy.weights, without.strategy.weights)
    np.testing.assert_array_equal(play(with_it), play(without))


@three_methods
@pytest.mark.parametrize("same", [True, False])
def test_second_reply_in_a_round(name: str, same: bool) -> None:
    """The first counts, whatever the second says."""
    twice, once = Rounds(make(name)), Rounds(make(name))
    for rounds in (twice, once):
        asked = rounds.ask(range(N))
        second = work(2, asked[2]) if same else reply(asked[2], np.ones(M), 7, steps=1, departing=True)
        results = [(client, work(client, instruction)) for client, instruction in asked.items()]
        rounds.hear(*results, *([(2, second)] if rounds is twice else []))
    assert twice.strategy.report.rejected == [("2", "second reply in one round")]
    np.testing.assert_array_equal(twice.strategy.weights, once.strategy.weights)
    np.testing.assert_array_equal(play(twice), play(once))


@three_methods
def test_late_reply_does_not_keep_out_the_right_one(name: str) -> None:
    """What client 2 owed from round 1 comes in round 2, before its reply to round 2."""
    late, on_time = Rounds(make(name)), Rounds(make(name))
    owed = work(2, late.ask(range(N))[2])
    late.hear()
    on_time.ask(range(N))
    on_time.hear()
    asked = late.ask(range(N))
    late.hear((2, owed), *((client, work(client, instruction)) for client, instruction in asked.items()))
    assert late.strategy.report.rejected == [("2", "late reply of round 1")]
    np.testing.assert_array_equal(late.strategy.weights, play(on_time))


@three_methods
def test_results_of_a_closed_round(name: str) -> None:
    """A server that hands in round 1 again while round 2 runs changes nothing."""
    rounds = Rounds(make(name))
    before = play(rounds)
    asked = rounds.ask(range(N))
    rounds.number -= 1
    after = rounds.hear(*((client, reply(i, delta(client, 1))) for client, i in asked.items()))
    np.testing.assert_array_equal(after, before)
    assert {reason for _, reason in rounds.strategy.report.rejected} == {"was not asked in this round"}


@three_methods
@pytest.mark.parametrize("loss", ["low", b"", float("nan"), float("-inf"), 10**400])
def test_nonsense_beside_good_work_does_not_matter(name: str, loss: Any) -> None:
    odd, plain = Rounds(make(name)), Rounds(make(name))
    asked = odd.ask(range(N))
    told = {"train-loss": loss, "final-loss": loss, "seconds": "many", "resync": 2}
    odd.hear(*((client, work(client, i, **told)) for client, i in asked.items()))
    assert odd.strategy.report.rejected == []
    assert odd.metrics == {"active": N, "rejected": 0}
    np.testing.assert_array_equal(odd.strategy.weights, play(plain))
