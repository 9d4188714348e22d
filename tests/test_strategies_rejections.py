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
    "exploded": (vector(4, -1e30), r"update of norm 1e\+30, more than 1e\+12"),
    "other-shape": (arrays(START[0].T, *START[1:]), "arrays of shapes .* are expected"),
    "too-many-arrays": (arrays(*START, np.zeros(3)), "5 arrays where 4 (or 6 )?are expected"),
    "no-arrays": (arrays(), "arrays of shapes .* are expected"),
    "integers": (arrays(*(a.astype(np.int64) for a in START)), "weights of type int64"),
    "complex": (arrays(START[0] + 1j, *START[1:]), "array of type complex128"),
    "text": (arrays(np.full((2, 3), "1.5"), *START[1:]), "array of type <U3"),
    "records": (arrays(np.zeros((2, 3), [("a", "f8")]), *START[1:]), "array of type "),
    "text-after-the-weights": (arrays(*START, np.array("x")), "array of type <U1"),
    "pickle": (tensors(saved(np.full((2, 3), None))), "weights are not NumPy arrays"),
    "cut-off": (tensors(saved(START[0])[:-1]), "weights are not NumPy arrays"),
    "mixed-header": (tensors(header("{1: 2, 'a': 3}")), "weights are not NumPy arrays"),
    "vast-header": (tensors(claims("'<f8'", f"({10**30},)")), "weights are not NumPy arrays"),
    "no-metrics": (lambda result, _: setattr(result, "metrics", None), "without status, or whose metrics"),
    "no-status": (lambda result, _: setattr(result, "status", None), "without status, or whose metrics"),
    "examples-true": (examples(True), "impossible number of examples True"),
    "negative-examples": (examples(-1), "impossible number of examples -1"),
    "no-examples": (examples(0), "no examples"),
    "huge-examples": (examples(2**62), "impossible number of examples 4611686018427387904"),
    "examples-as-text": (examples("10"), "impossible number of examples '10'"),
    "too-many-steps": (metrics(steps=4), "impossible number of steps 4 of "),
    "no-steps": (metrics(steps=0), "no local steps"),
    "fractional-steps": (metrics(steps=1.5), r"impossible number of steps 1\.5 of "),
    "steps-true": (metrics(steps=True), "impossible number of steps True of "),
    "steps-as-text": (metrics(steps="1"), "impossible number of steps '1' of "),
    "late": (metrics(round=1), "late reply of round 1"),
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


Extra = Callable[[dict[int, FitIns], dict[int, FitIns]], FitRes]  # of what was asked in rounds 1 and 2
NOT_ASKED: tuple[Extra, str] = (lambda first, asked: work(1, asked[1]), "was not asked in this round")
SECOND = "second reply in one round"
MORE: dict[str, tuple[str, Extra, str]] = {
    **{stranger: (stranger, *NOT_ASKED) for stranger in ("4", "ghost", "-1", "99")},
    "same": ("2", lambda first, asked: work(2, asked[2]), SECOND),
    "other": ("2", lambda _, asked: reply(asked[2], np.ones(M), 7, steps=1, departing=True), SECOND),
    "late": ("2", lambda first, asked: work(2, first[2]), "late reply of round 1"),
}


@three_methods
@pytest.mark.parametrize("kind", MORE)
def test_a_reply_too_many_keeps_out_no_other(name: str, kind: str) -> None:
    """The first that answers the task counts, whatever comes after it; a late one comes before it."""
    sender, extra, reason = MORE[kind]
    with_it, without = Rounds(make(name)), Rounds(make(name))
    for rounds in (with_it, without):
        first = rounds.ask(range(4))
        rounds.hear(*((client, work(client, first[client])) for client in (0, 1, 3)))
        asked = rounds.ask(range(4))
        results: list[Any] = [(client, work(client, instruction)) for client, instruction in asked.items()]
        if rounds is with_it:
            results.insert(0 if kind == "late" else 4, (sender, extra(first, asked)))
        rounds.hear(*results)
    assert with_it.strategy.report.rejected == [(sender, reason)]
    np.testing.assert_array_equal(with_it.strategy.weights, without.strategy.weights)
    np.testing.assert_array_equal(play(with_it), play(without))


@three_methods
@pytest.mark.parametrize("loss", ["low", float("nan"), float("-inf"), 10**400, 1e308, -1e300, 1e19])
def test_nonsense_beside_good_work_does_not_matter(name: str, loss: Any) -> None:
    odd, plain = Rounds(make(name)), Rounds(make(name))
    asked = odd.ask(range(N))
    told = {"train-loss": loss, "final-loss": loss, "seconds": "many", "resync": 2}
    odd.hear(*((client, work(client, i, **told)) for client, i in asked.items()))
    assert odd.strategy.report.rejected == []
    assert odd.metrics == {"active": N, "rejected": 0}
    np.testing.assert_array_equal(odd.strategy.weights, play(plain))


@three_methods
def test_whole_numbers_of_any_type_are_read(name: str) -> None:
    odd, plain = Rounds(make(name)), Rounds(make(name))
    asked = odd.ask(range(N))
    replies = {client: work(client, instruction) for client, instruction in asked.items()}
    for result, number in zip(replies.values(), (float, np.float32, np.int32, np.int64, int), strict=True):
        result.num_examples, steps = number(result.num_examples), result.metrics.get("steps")
        result.metrics |= {"train-loss": number(1)} | ({} if steps is None else {"steps": number(steps)})
    odd.hear(*replies.items())
    assert odd.strategy.report.rejected == []
    assert odd.metrics == {"active": N, "rejected": 0, "train-loss": 1.0}
    np.testing.assert_array_equal(odd.strategy.weights, play(plain))
