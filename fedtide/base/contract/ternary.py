"""Ternary vectors: how EFL compresses an update, and how it is sent.

Ma et al., EFL, Algorithm 2, after Sattler et al. 2019, "Robust and Communication-Efficient Federated Learning
from Non-IID Data". The same compression of PyTorch tensors is in clients/rules/elastic.py.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Ties = Literal["exact", "paper", "mean"]
Rounding = Literal["floor", "ceil"]
TIES, ROUNDINGS = get_args(Ties), get_args(Rounding)
HEADER = 8  # bytes of the magnitude, a little-endian float64


def kept(size: int, sparsity: float, rounding: str = "floor") -> int:
    """k = max(floor(n q), 1) of n entries, or with `ceil` rounded up, as in the code of Sattler et al.

    100 * 0.29 counts as 29, although it is less in floating point.
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
        How many entries are kept, see `kept`. Even if all are, they get the same magnitude: ST is not the
        identity then.
    ties
        `exact` keeps k entries, those with the lowest index among equal ones. `paper` keeps every |T_i| that
        is at least the k-th largest and still divides by k, which enlarges T: ten equal entries become ten
        times as large with k = 1. `mean` keeps the same entries, with the mean of the k largest as mu, as in
        the code of Sattler et al.
    """
    if not len(vector):
        return vector.copy()
    size = np.abs(vector)
    edge = np.partition(size, len(size) - k)[len(size) - k]
    mask = size >= edge
    if ties == "exact":
        above = size > edge
        tied = size == edge
        mask = above | (tied & (np.cumsum(tied) <= k - above.sum()))
    total = size[mask].sum()
    if ties == "mean":  # counts k entries only
        total -= edge * (mask.sum() - k)
    magnitude = total / k
    return np.where(mask, magnitude * np.sign(vector), 0.0)


def pack(vector: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Encode a ternary vector: magnitude, one bit per entry (kept?), one bit per kept entry (positive?).

    Parameters
    ----------
    vector
        Entries 0, mu and -mu, shape (M,).

    Returns
    -------
    NDArray
        Bytes, shape (B,) of uint8; both bit strings are padded with zeros to whole bytes.
    """
    values = vector[vector != 0]
    magnitude = np.array([abs(values[0]) if len(values) else 0.0], "<f8")
    parts = (magnitude.view(np.uint8), np.packbits(vector != 0), np.packbits(values > 0))
    return np.concatenate(parts)


def unpack(packed: NDArray[Any], size: int) -> NDArray[np.float64]:
    """Decode what `pack` made of a vector of `size` entries.

    Raises
    ------
    ValueError
        `pack` cannot have made these bytes: length, padding or magnitude are impossible.
    """
    signs_at = HEADER + -(-size // 8)
    if len(packed) < signs_at:
        raise ValueError(f"packed update of {len(packed)} bytes where at least {signs_at} are expected")
    magnitude = float(np.frombuffer(packed[:HEADER].tobytes(), "<f8")[0])
    if not 0 <= magnitude < math.inf or math.copysign(1, magnitude) < 0:  # -0.0
        raise ValueError(f"packed update with magnitude {magnitude}")
    bits = np.unpackbits(packed[HEADER:signs_at])
    mask = bits[:size].astype(bool)
    count = int(mask.sum())
    expected = signs_at + -(-count // 8)
    signs = np.unpackbits(packed[signs_at:expected])
    if len(packed) != expected or bits[size:].any() or signs[count:].any():
        what = f"{len(packed)} bytes where {expected} are expected, padded with zeros"
        raise ValueError(f"packed update of {what}")
    if bool(magnitude) != bool(count):
        raise ValueError(f"packed update with magnitude {magnitude} and {count} entries")
    vector = np.zeros(size)
    vector[mask] = np.where(signs[:count], magnitude, -magnitude)
    return vector
