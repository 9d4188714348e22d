"""Model weights as one flat vector, and what Flower's messages hold. Nothing is ever unpickled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status, ndarray_to_bytes, parameters_to_ndarrays
from numpy.typing import NDArray

from fedtide.base.contract import Rule, metrics, ternary

FloatVector = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Layout:
    """How the tensors of a model lie in its flat vector, one after the other.

    Attributes
    ----------
    shapes
        Shape of each tensor, in the order in which they are sent.
    dtype
        Data type of the weights on the wire.
    num_buffers
        How many of the tensors, the last ones, are buffers: numbers that training notes, such as the running
        means and variances of BatchNorm. No method's formula is applied to them; the server averages them.
    frozen_checksum
        Of the weights that are not among these tensors, see `FitConfig.frozen_checksum`.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: np.dtype[Any]
    num_buffers: int = 0
    frozen_checksum: float = 0.0

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]], num_buffers: int = 0, frozen_checksum: float = 0.0) -> Layout:
        """Layout of a list of arrays, all of which must be floating point, buffers last."""
        if not arrays:
            raise ValueError("a model needs at least one array of weights")
        for position, array in enumerate(arrays):
            if not np.issubdtype(array.dtype, np.floating):
                raise ValueError(
                    f"array {position} of the weights is {array.dtype}; send floating-point arrays only, and "
                    "leave out, at the server and in the clients, others such as num_batches_tracked of "
                    "BatchNorm: [t for t in model.state_dict().values() if t.is_floating_point()]"
                )
        if not 0 <= num_buffers < len(arrays):
            raise ValueError(f"{num_buffers} of {len(arrays)} arrays cannot be buffers")
        return cls(tuple(a.shape for a in arrays), np.result_type(*arrays), num_buffers, frozen_checksum)

    @cached_property
    def size(self) -> int:
        """Number of scalars."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    @cached_property
    def weights(self) -> Layout:
        """Layout of the tensors without the buffers."""
        return Layout(self.shapes[: len(self.shapes) - self.num_buffers], self.dtype)

    @cached_property
    def buffers(self) -> Layout:
        """Layout of the buffers alone."""
        return Layout(self.shapes[len(self.shapes) - self.num_buffers :], self.dtype)

    def flatten(self, arrays: Sequence[NDArray[Any]]) -> FloatVector:
        """Concatenate arrays of this layout to one vector."""
        shapes = tuple(a.shape for a in arrays)
        if shapes != self.shapes:
            raise ValueError(f"arrays of shapes {list(shapes)} where {list(self.shapes)} are expected")
        return np.concatenate([np.ravel(a) for a in arrays] or [np.empty(0, self.dtype)])

    def divide(self, vector: FloatVector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights, shape (M,), and the buffers of one vector, in float64."""
        size = self.weights.size
        return vector[:size].astype(np.float64), vector[size:].astype(np.float64)

    def pack(self, weights: FloatVector, buffers: FloatVector) -> FlatParameters:
        """Return weights, shape (M,), and buffers as they are sent, in the layout's type."""
        vector = np.concatenate([weights, buffers]) if self.num_buffers else weights
        return FlatParameters(vector.astype(self.dtype), self)

    def split(self, vector: FloatVector) -> list[NDArray[Any]]:
        """Cut a vector into views, one per tensor."""
        arrays, start = [], 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape))
            arrays.append(vector[start:stop].reshape(shape))
            start = stop
        return arrays


class FlatParameters(Parameters):
    """`Parameters` that hold a flat vector and are serialised only when `tensors` is read.

    Clients simulated on this machine exchange the vector itself; to Flower's own code these are ordinary
    `Parameters`. `vector` has the weights, shape (M,), and after them the buffers, if `layout` has any;
    `extra` are arrays that the method sends after the weights.
    """

    def __init__(self, vector: FloatVector, layout: Layout, extra: Sequence[NDArray[Any]] = ()) -> None:
        self.vector = vector
        self.layout = layout
        self.extra = tuple(extra)
        self.tensor_type = "numpy.ndarray"
        self._tensors: list[bytes] | None = None

    @property
    def tensors(self) -> list[bytes]:  # type: ignore[override]
        """The serialised arrays, one per tensor."""
        if self._tensors is None:
            self._tensors = [ndarray_to_bytes(a) for a in self.arrays()]
        return self._tensors

    def arrays(self) -> list[NDArray[Any]]:
        """The weights cut into tensors, then the extra arrays."""
        return [*self.layout.split(self.vector), *self.extra]

    @cached_property
    def weights(self) -> FloatVector:
        """The weights without the buffers, shape (M,); always the same object."""
        return self.vector[: self.layout.weights.size] if self.layout.num_buffers else self.vector

    @property
    def buffers(self) -> FloatVector:
        """The buffers, in one vector."""
        return self.vector[len(self.weights) :]

    @property
    def num_bytes(self) -> int:
        """Size of the arrays without any framing."""
        return self.vector.nbytes + sum(a.nbytes for a in self.extra)


def combined_buffers(coefficients: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_k coefficients_k b_k for coefficients that add up to 1, given the buffers b_k in K rows.

    A number that all rows have in common stays as it is: not finite, or without an error of rounding.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        combined: NDArray[np.float64] = coefficients @ rows
    constant = (rows == rows[0]).all(axis=0)
    combined[constant] = rows[0, constant]
    return combined


def read_parameters(parameters: Parameters, layout: Layout) -> tuple[FloatVector, list[NDArray[Any]]]:
    """Split received parameters into a flat vector of this layout and the method's extra arrays.

    ValueError: the first arrays do not have the shapes of `layout`, or one is not an array of numbers.
    """
    if isinstance(parameters, FlatParameters) and parameters.layout.shapes == layout.shapes:
        return parameters.vector, list(parameters.extra)
    arrays = read_arrays(parameters)
    count = len(layout.shapes)
    return layout.flatten(arrays[:count]), arrays[count:]


def read_arrays(parameters: Parameters) -> list[NDArray[Any]]:
    """Return received parameters as they are; ValueError if they are not NumPy arrays of numbers."""
    if isinstance(parameters, FlatParameters):
        return parameters.arrays()
    try:
        arrays = parameters_to_ndarrays(parameters)
    except Exception as error:  # a broken header makes NumPy raise anything, tokenize.TokenError too
        raise ValueError(f"weights are not NumPy arrays: {error}") from error
    if not all(isinstance(array, np.ndarray) for array in arrays):
        raise ValueError("weights are not NumPy arrays")
    for array in arrays:
        if array.dtype.kind not in "fiub":
            raise ValueError(f"array of type {array.dtype}")
    return arrays


def count_bytes(parameters: Parameters) -> int:
    """Bytes of the tensors in `parameters`, without serialising what has not been serialised yet."""
    if isinstance(parameters, FlatParameters):
        return parameters.num_bytes
    return sum(len(tensor) for tensor in parameters.tensors)


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
