"""Vectors of PyTorch or of NumPy, and what rules do with them beyond operators.

PyTorch is not imported here: a vector that is not a NumPy array is one of PyTorch, which is there then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


class Vector(Protocol):
    """A vector, or one for each client, shape (..., M): a PyTorch tensor or a NumPy array of floats."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., M)."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Vector]: ...
    def __getitem__(self, key: Any, /) -> Vector: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __neg__(self) -> Vector: ...
    def __add__(self, other: Any, /) -> Vector: ...
    def __sub__(self, other: Any, /) -> Vector: ...
    def __rsub__(self, other: Any, /) -> Vector: ...
    def __mul__(self, other: Any, /) -> Vector: ...
    def __rmul__(self, other: Any, /) -> Vector: ...
    def __truediv__(self, other: Any, /) -> Vector: ...

    def clip(self, least: Any, most: Any, /) -> Vector:
        """Return the numbers, limited to this range."""


Rate = float | Vector
"""One number for all clients, or one for each, shape (..., 1)."""


def subtract(y: Vector, vector: Vector, factor: Rate) -> None:
    """y -= factor * vector, in place."""
    if isinstance(y, np.ndarray):
        y -= factor * vector
    elif isinstance(factor, int | float):
        cast("Tensor", y).sub_(cast("Tensor", vector), alpha=factor)
    else:
        cast("Tensor", y).addcmul_(cast("Tensor", vector), cast("Tensor", factor), value=-1)


def approach(y: Vector, target: Vector, share: Rate) -> None:
    """y += share * (target - y), in place."""
    if isinstance(y, np.ndarray):
        y += share * (target - y)
    else:
        cast("Tensor", y).lerp_(cast("Tensor", target), cast("Tensor", share))


def copy_of(vector: Vector) -> Vector:
    """Return a copy."""
    return vector.copy() if isinstance(vector, np.ndarray) else cast("Tensor", vector).clone()


def concatenate(first: Vector, second: Vector) -> Vector:
    """Return the vectors (..., A) and (..., B) as new ones (..., A + B)."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, cast("NDArray[Any]", second)], axis=-1)
    import torch

    return torch.cat([cast("Tensor", first), cast("Tensor", second)], dim=-1)


def dot(left: Vector, right: Vector) -> Vector:
    """Return the inner product of each pair of vectors, shape (..., 1)."""
    products: Any = left * right
    return cast(Vector, products.sum(-1, keepdims=True))


def numbers_like(vector: Vector, value: float) -> Vector:
    """Return the same number for each client, shape (..., 1), in the type of a vector (..., M)."""
    one = vector[..., :1]
    return (
        np.full_like(one, value)
        if isinstance(one, np.ndarray)
        else cast("Tensor", one).new_full(one.shape, value)
    )


def is_finite(vector: Vector) -> bool:
    """Whether all numbers are finite."""
    finite = np.isfinite(vector) if isinstance(vector, np.ndarray) else cast("Tensor", vector).isfinite()
    return bool(finite.all())


def as_array(vector: Vector) -> NDArray[Any]:
    """Return a NumPy array, which shares memory with a vector that is not on a GPU."""
    return vector if isinstance(vector, np.ndarray) else cast("Tensor", vector).cpu().numpy()
