"""Ternary vectors, of PyTorch or of NumPy; see fedtide/ground/contract/ternary.py for the definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from clients.rules.vectors import Vector, as_array
from fedtide.ground.contract import ternary as codec

if TYPE_CHECKING:
    from torch import Tensor


def ternary(vector: Vector, k: int, ties: str = "exact") -> Vector:
    """ST(T) of each vector of (..., M) independently (Ma et al., EFL, Algorithm 2)."""
    if isinstance(vector, np.ndarray):
        return np.apply_along_axis(codec.ternary, -1, vector, k, ties)
    vector = cast("Tensor", vector)
    size = vector.abs()
    edge = size.kthvalue(size.shape[-1] - k + 1, dim=-1, keepdim=True).values
    mask = size >= edge
    if ties == "exact":
        above, tied = size > edge, size == edge
        mask = above | (tied & (tied.cumsum(dim=-1) <= k - above.sum(dim=-1, keepdim=True)))
    total = (size * mask).sum(dim=-1, keepdim=True)
    if ties == "mean":
        total = total - edge * (mask.sum(dim=-1, keepdim=True) - k)
    magnitude = total / k
    return magnitude * vector.sign() * mask


def pack(vector: Vector) -> Vector:
    """Encode one ternary vector, shape (M,), as bytes; see `fedtide.ground.contract.ternary.pack`."""
    if isinstance(vector, np.ndarray):
        return codec.pack(vector)
    import torch

    return torch.from_numpy(codec.pack(as_array(vector)))
