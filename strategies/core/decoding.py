"""What a client's message holds: its numbers, and its arrays as vectors. Nothing is ever unpickled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status
from numpy.typing import NDArray

from fedtide.ground.contract import Rule, metrics, ternary
from strategies.core.parameters import FlatParameters, FloatVector, read_arrays, read_parameters

MAX_EXAMPLES = 10**12  # more is a broken client; sums of n_k stay exact in float64
MAX_NUMBER = 1e18  # of buffers and of a method's own arrays; sums of such numbers stay finite in float32
NO_BUFFERS: FloatVector = np.empty(0)


class DivergedError(ValueError):
    """The client's weights are not finite, or too far from those that it was sent."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether this is a finite number with which no sum overflows, also NumPy's; `True` is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-MAX_NUMBER <= value <= MAX_NUMBER)  # False for NaN


def whole(value: object) -> int | None:
    """Return a whole number, such as 5 or 5.0; None: it is something else."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return int(value) if is_number(value) and float(value).is_integer() else None


def read_steps(answer: Mapping[str, Any], planned: int, key: str = metrics.STEPS) -> int:
    """Return the local steps that a client reports; where it does not, it has done all of them."""
    told = answer.get(key, planned)
    if (steps := whole(told)) is None:
        raise ValueError(f"impossible number of {key} {told!r} of {planned}")
    return steps


def read_number(answer: Mapping[str, Any], key: str) -> float:
    """Return a loss, or another number, that a client may or may not report; NaN: it does not."""
    value = answer.get(key)
    return float(value) if is_number(value) else math.nan


def is_reply(result: FitRes) -> bool:
    """Whether a client in this process returned a reply; what Flower carries always is one."""
    return isinstance(result.metrics, Mapping) and isinstance(result.status, Status)


def check_round(result: FitRes, server_round: int) -> None:
    """Raise ValueError if the client failed, or answers the task of another round."""
    if not is_reply(result):
        raise ValueError("a reply without status, or whose metrics are not a dictionary")
    if result.status.code != Code.OK:
        raise ValueError(result.status.message or f"status {result.status.code.name}")
    if not answers(result, server_round):
        raise ValueError(f"late reply of round {result.metrics[metrics.ROUND]!r}")


def answers(result: FitRes, server_round: int) -> bool:
    """Whether a reply is to the task of this round, or does not say."""
    return result.metrics.get(metrics.ROUND, server_round) == server_round


def decode(
    parameters: Parameters, rule: Rule, sent: FlatParameters
) -> tuple[FloatVector, FloatVector, list[NDArray[Any]]]:
    """Return what a client of this rule sends, which was sent `sent`; ValueError if it cannot be used.

    That is: the local weights, or what `rule.sends` in their place, shape (M,); the buffers in one vector;
    and the vectors that follow. Where updates are packed, a client of another kind may send weights.
    """
    wire, origin, buffers = sent.layout, sent.weights, NO_BUFFERS
    size, count = len(origin), len(wire.shapes)
    if rule.sends == "weights":
        vector, extra = read_parameters(parameters, wire)
        vector, buffers = vector[:size], vector[size:] if wire.num_buffers else NO_BUFFERS
    else:
        arrays = read_arrays(parameters)
        packed = arrays[wire.num_buffers :]
        instead = rule.sends == "vector" or (packed and packed[0].dtype == np.uint8 and packed[0].ndim == 1)
        if instead and wire.num_buffers:
            buffers, arrays = wire.buffers.flatten(arrays[: wire.num_buffers]), packed
        if rule.sends == "vector":
            vector, extra, count = read_vector(arrays, size), [], 1
        elif instead:
            vector, extra, count = ternary.unpack(arrays[0], size), arrays[1:], 1
        else:
            weights, extra = wire.flatten(arrays[:count]), arrays[count:]
            check_floating(weights)
            vector, buffers = np.subtract(weights[:size], origin, dtype=np.float64), weights[size:]
    check_floating(vector)
    check_range(buffers, sent.buffers)
    if len(extra) not in (0, rule.extra):
        expected = f"{count} or {count + rule.extra}" if rule.extra else str(count)
        raise ValueError(f"{count + len(extra)} arrays where {expected} are expected")
    for array in extra:
        if array.shape != (size,) or array.dtype.kind != "f":
            raise ValueError(f"an array of shape {array.shape} and type {array.dtype} after the weights")
        check_range(array)
    return vector, buffers, extra


def read_vector(arrays: Sequence[NDArray[Any]], size: int) -> FloatVector:
    """Return the only array, shape (M,), of a client that sends something else than its weights."""
    shapes = [array.shape for array in arrays]
    if shapes != [(size,)]:
        expected = f"one of ({size},) is expected; memory=client needs the clients of fedtide"
        raise ValueError(f"arrays of shapes {shapes} where {expected}")
    return arrays[0]


def check_floating(array: NDArray[Any]) -> None:
    """Raise ValueError for numbers of another type."""
    if array.dtype.kind != "f":
        raise ValueError(f"weights of type {array.dtype}")


def check_range(array: NDArray[Any], sent: NDArray[Any] | None = None) -> None:
    """Raise ValueError for numbers that are not floating point, not finite, or whose sums could overflow.

    A number that equals the one that was `sent` in its place is right whatever it is: a buffer may hold a
    constant, such as the -inf of an attention mask.
    """
    check_floating(array)
    if not array.size or float(np.vdot(array, array)) < MAX_NUMBER**2:  # False for NaN
        return
    wrong = ~(np.abs(array) <= MAX_NUMBER)
    if sent is not None:
        wrong &= ~((array == sent) | (np.isnan(array) & np.isnan(sent)))
    if not wrong.any():
        return
    if not math.isfinite(size := largest(array[wrong])):
        raise DivergedError("numbers beside the weights are not finite")
    raise DivergedError(f"numbers as large as {size:.1e} beside the weights")


def largest(array: NDArray[Any]) -> float:
    """Return the largest absolute value, NaN if any is."""
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    return math.nan if math.isnan(low) else max(-low, high)
