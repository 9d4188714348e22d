"""What rules do with vectors beyond operators, for those of PyTorch and those of NumPy.

PyTorch is not imported here: a vector that is no NumPy array is one of PyTorch, which is there then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Vector = Any
"""A vector, or one for each client, shape (..., M): a PyTorch tensor or a NumPy array of floats."""

Rate = Any
"""One number for all clients, or one for each, shape (..., 1)."""


def subtract(y: Vector, vector: Vector, factor: Rate) -> None:
    """y -= factor * vector, in place."""
    if isinstance(y, np.ndarray):
        y -= factor * vector
    elif isinstance(factor, int | float):
        y.sub_(vector, alpha=factor)
    else:
        y.addcmul_(vector, factor, value=-1)


def approach(y: Vector, target: Vector, share: Rate) -> None:
    """y += share * (target - y), in place."""
    if isinstance(y, np.ndarray):
        y += share * (target - y)
    else:
        y.lerp_(target, share)


def copy_of(vector: Vector) -> Vector:
    """Return a copy."""
    return vector.copy() if isinstance(vector, np.ndarray) else vector.clone()


def joined(first: Vector, second: Vector) -> Vector:
    """Return two vectors as one, a new one."""
    size = len(first) + len(second)
    whole = np.empty_like(first, shape=size) if isinstance(first, np.ndarray) else first.new_empty(size)
    whole[: len(first)], whole[len(first) :] = first, second
    return whole


def numbers_like(vector: Vector, value: float) -> Vector:
    """Return the same number for each client, shape (..., 1), in the type of a vector (..., M)."""
    one = vector[..., :1]
    return np.full_like(one, value) if isinstance(one, np.ndarray) else one.new_full(one.shape, value)


def is_finite(vector: Vector) -> bool:
    """Whether all numbers are finite."""
    finite = np.isfinite(vector) if isinstance(vector, np.ndarray) else vector.isfinite()
    return bool(finite.all())
