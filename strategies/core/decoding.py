"""Which replies count, and what they say.

An *active* reply answers the task that its client has to answer, reports at least one step and one example,
and carries finite weights of the right shapes. Any other is treated exactly as if nothing had come, and is
named with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status
from numpy.typing import NDArray

from flexfl.ground.contract import Rule, metrics, ternary
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters, FloatVector, read_arrays, read_parameters
from strategies.core.replies import NO_BUFFERS, Reply
from strategies.core.tasks import Sent

MAX_EXAMPLES = 10**12  # more is a broken client; sums of n_k stay exact in float64
MAX_GROWTH = 10  # times the number of examples that the client had first
MAX_WEIGHT = 1e18  # more is a diverged client; sums of such weights stay finite in float32
MAX_RESULT = 1e15  # of global weights: replies to them, scaled up by up to 1,000 times, still count
MAX_LOSS = 1e18


class NoExamplesError(ValueError):
    """The client reports that it has no data."""


class DivergedError(ValueError):
    """The client's weights are not finite, or too large."""


def read_reply(
    client: int, result: FitRes, sent: Sent, rule: Rule, work: Options, first_size: int = 0
) -> Reply:
    """Check and decode one reply.

    Parameters
    ----------
    client
        Index of the client that sent it.
    result
        What it sent.
    sent
        What it was sent for this task.
    rule
        What it was to send.
    work
        What it was asked to do.
    first_size
        The number of examples that it had first; 0: not known.

    Raises
    ------
    ValueError
        The reply is not active; the message is the reason.
    """
    check_round(result, sent.round)
    told = result.metrics
    n = result.num_examples
    if n == 0 and type(n) is int:
        raise NoExamplesError("no examples")
    if not is_count(n):
        raise ValueError(f"impossible number of examples {n!r}")
    if first_size and n > MAX_GROWTH * first_size:
        raise ValueError(f"{n} examples, more than {MAX_GROWTH} times the {first_size} that it had first")
    planned = work.planned_steps(n)
    steps = told.get(metrics.STEPS, planned)
    if isinstance(steps, float) and steps.is_integer():
        steps = int(steps)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= planned:
        raise ValueError(f"impossible number of steps {steps!r} of {planned}")
    if steps == 0:
        raise ValueError("no local steps")
    # Some methods scale the update up by planned / steps.
    limit = MAX_WEIGHT * steps / planned
    vector, buffers, extra = decode(result.parameters, rule, sent.weights, limit)
    return Reply(
        client=client,
        vector=vector,
        origin=sent.weights.weights if rule.sends == "weights" else None,
        learning_rate=sent.learning_rate,
        version=sent.version,
        steps=steps,
        planned=planned,
        num_examples=n,
        train_loss=_loss(told, metrics.TRAIN_LOSS),
        final_loss=_loss(told, metrics.FINAL_LOSS),
        extra=extra,
        resync=told.get(metrics.RESYNC) is True,
        buffers=buffers,
    )


def is_count(value: object) -> TypeGuard[int]:
    """Return whether this can be the number of a client's examples, of which there is at least one."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_EXAMPLES


def check_form(result: FitRes) -> None:
    """Raise ValueError if a client in this process returned no reply; what Flower carries always is one."""
    if not isinstance(result.metrics, Mapping) or not isinstance(result.status, Status):
        raise ValueError("a reply without status, or whose metrics are no dictionary")


def check_round(result: FitRes, server_round: int) -> None:
    """Raise ValueError if the client failed, or answers the task of another round."""
    check_form(result)
    if result.status.code != Code.OK:
        raise ValueError(result.status.message or f"status {result.status.code.name}")
    if not answers(result, server_round):
        raise ValueError(f"late reply of round {result.metrics[metrics.ROUND]!r}")


def answers(result: FitRes, server_round: int) -> bool:
    """Whether a reply is to the task of this round, or does not say."""
    return result.metrics.get(metrics.ROUND, server_round) == server_round


def decode(
    parameters: Parameters, rule: Rule, sent: FlatParameters, limit: float = MAX_WEIGHT
) -> tuple[FloatVector, FloatVector, list[NDArray[Any]]]:
    """Read what a client of this rule sends.

    Parameters
    ----------
    parameters
        What came: the weights, unless the rule sends something else, the buffers, and what the rule sends.
    rule
        Says what it should be. Where updates are packed, a client of another kind may send weights.
    sent
        The weights that the client started from, and the buffers.
    limit
        Largest absolute value of a number.

    Returns
    -------
    vector, buffers, extra
        Local weights if `rule.sends` is `weights`, else what is sent in their place, shape (M,); the buffers
        in one vector; and the vectors that follow.

    Raises
    ------
    ValueError
        It is something else, not finite, or too large; the message says what.
    """
    wire, origin, buffers = sent.layout, sent.weights, NO_BUFFERS
    size, count = len(origin), len(wire.shapes)
    if rule.sends == "weights":
        vector, extra = read_parameters(parameters, wire)
        vector, buffers = vector[:size], vector[size:] if wire.num_buffers else NO_BUFFERS
        check_range(vector, limit)
    else:
        arrays = read_arrays(parameters)
        packed = arrays[wire.num_buffers :]
        instead = rule.sends == "vector" or (packed and packed[0].dtype == np.uint8 and packed[0].ndim == 1)
        if instead and wire.num_buffers:
            buffers, arrays = wire.buffers.flatten(arrays[: wire.num_buffers]), packed
        if rule.sends == "vector":
            vector, extra, count = read_vector(arrays, size, limit), [], 1
        elif instead:
            vector, extra, count = ternary.unpack(arrays[0], size), arrays[1:], 1
            check_range(vector, limit)
        else:
            weights, extra = wire.flatten(arrays[:count]), arrays[count:]
            check_range(weights[:size], limit)
            vector = np.subtract(weights[:size], origin, dtype=np.float64)
            buffers = weights[size:]
    check_range(buffers)
    if len(extra) not in (0, rule.extra):
        expected = f"{count} or {count + rule.extra}" if rule.extra else str(count)
        raise ValueError(f"{count + len(extra)} arrays where {expected} are expected")
    for array in extra:
        if array.shape != (size,) or array.dtype.kind != "f":
            raise ValueError(f"an array of shape {array.shape} and type {array.dtype} after the weights")
        check_range(array, limit)
    return vector, buffers, extra


def read_vector(arrays: list[NDArray[Any]], size: int, limit: float = MAX_WEIGHT) -> FloatVector:
    """Return the only array, shape (M,), of a client that sends something else than its weights.

    Raises
    ------
    ValueError
        Something else was sent.
    """
    shapes = [array.shape for array in arrays]
    if shapes != [(size,)]:
        expected = f"one of ({size},) is expected; memory=client needs the clients of flexfl"
        raise ValueError(f"arrays of shapes {shapes} where {expected}")
    check_range(arrays[0], limit)
    return arrays[0]


def check_range(array: NDArray[Any], limit: float = MAX_WEIGHT) -> None:
    """Refuse what is not floating point, NaN, infinities, and numbers with which a sum could overflow.

    Raises
    ------
    ValueError
        The array has other numbers.
    """
    if array.dtype.kind != "f":
        raise ValueError(f"weights of type {array.dtype}")
    if not array.size or float(np.vdot(array, array)) < limit**2:  # False for NaN
        return
    if not math.isfinite(size := largest(array)):
        raise DivergedError("weights are not finite")
    if size > limit:
        scaled = f", scaled up {MAX_WEIGHT / limit:.3g} times" if limit < MAX_WEIGHT else ""
        raise DivergedError(f"weights as large as {size:.1e}{scaled}")


def largest(array: NDArray[Any]) -> float:
    """Return the largest absolute value, NaN if any is."""
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    return math.nan if math.isnan(low) else max(-low, high)


def _loss(told: Mapping[str, Any], key: str) -> float:
    """Return a loss that a client may or may not report."""
    value = told.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) <= MAX_LOSS else math.nan
