"""Ternary vectors: what EFL makes of an update, and how it is sent.

Ma et al., EFL, Algorithm 2, which follows Sattler et al. 2019, "Robust and Communication-Efficient Federated
Learning from Non-IID Data". The client's side, for torch and with the packing, is clients/rules/ternary.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TIES = ("exact", "paper", "mean")
ROUNDINGS = ("floor", "ceil")
HEAD = 8  # bytes of the magnitude, a little-endian float64


def kept(size: int, sparsity: float, rounding: str = "floor") -> int:
    """k = max(floor(n q), 1) of n entries, or the next integer above, as STC's code has it (`ceil`).

    100 * 0.29 means 29, though it is less in floating point.
    """
    exact = size * sparsity
    return max(math.floor(exact + 1e-9) if rounding == "floor" else math.ceil(exact - 1e-9), 1)


def ternary(vector: NDArray[np.float64], k: int, ties: str = "exact") -> NDArray[np.float64]:
    """ST(T): the k largest |T_i| become mu sign(T_i), the others 0; mu = (1/k) sum of the |T_i| kept.

    Parameters
    ----------
    vector
        T, finite, shape (M,).
    k
        How many entries are kept, see `kept`. With all of them, all get the same magnitude: that is not the
        identity.
    ties
        `exact` keeps k entries, of equal ones those with the lower index. `paper` keeps every |T_i| that is
        at least the k-th largest and still divides by k, which makes more of T than there was: ten equal
        entries become ten times as large with k = 1. `mean` keeps the same, with the mean of the k largest
        as mu, as the code of Sattler et al. does.
    """
    if not len(vector):
        return vector.copy()
    size = np.abs(vector)
    edge = np.partition(size, len(size) - k)[len(size) - k]
    mask = size >= edge
    if ties == "exact":
        above = size > edge
        room = k - above.sum()
        mask = above | ((size == edge) & (np.cumsum(size == edge) <= room))
    total = size[mask].sum()
    if ties == "mean":  # of equal ones only as many as fit
        total -= edge * (mask.sum() - k)
    magnitude = total / k
    return np.where(mask, magnitude * np.sign(vector), 0.0)


def unpack(packed: NDArray[Any], size: int) -> NDArray[np.float64]:
    """Decode a packed ternary vector: the magnitude, a bit an entry (kept?), a bit a kept entry (positive?).

    Parameters
    ----------
    packed
        Bytes, shape (B,) of uint8; both bit strings are filled up with zeros to whole bytes.
    size
        M.

    Raises
    ------
    ValueError
        The length or the magnitude is impossible.
    """
    signs_at = HEAD + -(-size // 8)
    if len(packed) < signs_at:
        raise ValueError(f"packed update of {len(packed)} bytes where at least {signs_at} are expected")
    magnitude = float(np.frombuffer(packed[:HEAD].tobytes(), "<f8")[0])
    if not 0 <= magnitude < math.inf:
        raise ValueError(f"packed update with magnitude {magnitude}")
    bits = np.unpackbits(packed[HEAD:signs_at])
    mask = bits[:size].astype(bool)
    count = int(mask.sum())
    expected = signs_at + -(-count // 8)
    if len(packed) != expected or bits[size:].any():
        raise ValueError(f"packed update of {len(packed)} bytes where {expected} are expected")
    vector = np.zeros(size)
    vector[mask] = np.where(np.unpackbits(packed[signs_at:], count=count), magnitude, -magnitude)
    return vector
