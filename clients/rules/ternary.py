"""Ternary vectors at the client: strategies/parts/ternary.py has the server's side and the explanations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def ternary(vector: Tensor, k: int, ties: str = "exact") -> Tensor:
    """ST(T) of vectors (..., M), each for itself (Ma et al., EFL, Algorithm 2)."""
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
    """Bytes of one ternary vector, shape (M,): 8 for the magnitude, then mask and signs in bits."""
    entries = vector.cpu().numpy()
    values = entries[entries != 0]
    magnitude = np.array([abs(values[0]) if len(values) else 0.0], "<f8")
    parts = (magnitude.view(np.uint8), np.packbits(entries != 0), np.packbits(values > 0))
    return torch.from_numpy(np.concatenate(parts))
