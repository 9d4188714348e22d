"""Ternary vectors of torch; flexfl/contract/ternary.py has the explanations."""

from __future__ import annotations

import torch
from torch import Tensor

from flexfl.contract import ternary as codec


def ternary(vector: Tensor, k: int, ties: str = "exact") -> Tensor:
    """ST(T) of vectors (..., M), of each on its own (Ma et al., EFL, Algorithm 2)."""
    size = vector.abs()
    edge = size.kthvalue(size.shape[-1] - k + 1, dim=-1, keepdim=True).values
    mask = size >= edge
    if ties == "exact":
        above, tied = size > edge, size == edge
        room = k - above.sum(dim=-1, keepdim=True)
        mask = above | (tied & (tied.cumsum(dim=-1) <= room))
    total = (size * mask).sum(dim=-1, keepdim=True)
    if ties == "mean":
        total = total - edge * (mask.sum(dim=-1, keepdim=True) - k)
    magnitude = total / k
    return magnitude * vector.sign() * mask


def pack(vector: Tensor) -> Tensor:
    """Bytes of one ternary vector, shape (M,), see `flexfl.contract.ternary.pack`."""
    return torch.from_numpy(codec.pack(vector.cpu().numpy()))
