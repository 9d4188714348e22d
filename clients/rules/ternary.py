"""Ternary vectors as PyTorch tensors; see flexfl/contract/ternary.py for the definitions."""

from __future__ import annotations

import torch
from torch import Tensor

from flexfl.contract import ternary as codec


def ternary(vector: Tensor, k: int, ties: str = "exact") -> Tensor:
    """ST(T) of each vector of (..., M) independently (Ma et al., EFL, Algorithm 2)."""
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


def pack(vector: Tensor) -> Tensor:
    """Encode one ternary vector, shape (M,), as bytes; see `flexfl.contract.ternary.pack`."""
    return torch.from_numpy(codec.pack(vector.cpu().numpy()))
