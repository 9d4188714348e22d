"""Model weights as one flat vector, and as Flower's `Parameters`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.common import Parameters, ndarray_to_bytes, parameters_to_ndarrays
from numpy.typing import NDArray

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
