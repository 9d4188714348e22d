"""Many vectors in one file, of which most stay the same from one checkpoint to the next.

A checkpoint writes those that changed since the one before, and never where a vector lies that a checkpoint
in use needs: that one stays whole, whatever happens while the next one is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import Rows, Vectors

Integers = NDArray[np.int64]


class RowIndex(NamedTuple):
    """Where the vectors of one `Rows` lie in the file; all arrays have shape (R,).

    Attributes
    ----------
    keys, versions
        Of the `Rows`.
    offsets, lengths
        First byte and number of bytes of each vector.
    checksums
        CRC-32 of each.
    dtype
        Type of the numbers.
    """

    keys: Integers
    versions: Integers
    offsets: Integers
    lengths: Integers
    checksums: Integers
    dtype: str


class RowFile:
    """A file of vectors.

    Parameters
    ----------
    path
        The file; it is created where it is missing.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, rows: Rows, before: RowIndex | None, space: FreeSpace) -> RowIndex:
        """Write the vectors that are not in the file yet; they are on the disk after `sync`.

        Parameters
        ----------
        rows
            All vectors.
        before
            Where they were at the last checkpoint; None: there was none.
        space
            Where to write.

        Raises
        ------
        OSError
            The disk is full.
        """
        count = len(rows.keys)
        old = unchanged(before, rows)
        place = np.zeros((3, count), np.int64)  # offsets, lengths, checksums
        dtype = "|u1" if before is None else before.dtype
        if before is not None:
            same = old >= 0
            for row, known in zip(place, (before.offsets, before.lengths, before.checksums), strict=True):
                row[same] = known[old[same]]
        for position in np.flatnonzero(old < 0).tolist():
            vector = np.ascontiguousarray(rows.vectors[position])
            dtype, data = vector.dtype.str, vector.view(np.uint8).data
            offset = space.take(len(data))
            self._write(data, offset)
            place[:, position] = offset, len(data), crc32(data)
        offsets, lengths, checksums = place
        return RowIndex(
            rows.keys.astype(np.int64), rows.versions.astype(np.int64), offsets, lengths, checksums, dtype
        )

    def sync(self) -> None:
        """Have everything on the disk."""
        os.fsync(self._fd)

    def read(self, index: RowIndex) -> Rows:
        """Return vectors, which are read when they are used.

        Raises
        ------
        ValueError
            They are not what was written: the file was torn or changed.
        """
        size = os.fstat(self._fd).st_size
        if len(index.keys) and (
            index.offsets.min() < 0
            or index.lengths.min() < 0
            or index.lengths.max() > size
            or (index.offsets > size - index.lengths).any()
        ):
            raise ValueError("vectors beyond the end of rows.bin")
        vectors = Vectors(len(index.keys), partial(self._vector, index))
        for key, vector, checksum in zip(index.keys.tolist(), vectors, index.checksums.tolist(), strict=True):
            if crc32(vector.view(np.uint8).data) != checksum:
                raise ValueError(f"the vector of {key} in rows.bin is damaged")
        return Rows(index.keys, index.versions, vectors)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _vector(self, index: RowIndex, position: int) -> NDArray[Any]:
        """Read one vector."""
        data = np.empty(int(index.lengths[position]), np.uint8)
        left, start = data.data, int(index.offsets[position])
        while left:
            done = os.preadv(self._fd, [left], start)
            if not done:
                raise ValueError("rows.bin has been truncated")
            left, start = left[done:], start + done
        return data.view(np.dtype(index.dtype))

    def _write(self, left: memoryview, start: int) -> None:
        while left:
            done = os.pwrite(self._fd, left, start)
            left, start = left[done:], start + done


class FreeSpace:
    """Where a file may be written without touching any vector that is in use.

    Parameters
    ----------
    used
        Where those vectors are.
    """

    def __init__(self, used: Iterable[RowIndex]) -> None:
        known = list(used)
        starts = np.concatenate([np.empty(0, np.int64), *(index.offsets for index in known)])
        lengths = np.concatenate([np.empty(0, np.int64), *(index.lengths for index in known)])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate((starts + lengths)[order])
        self._end = int(ends[-1]) if len(ends) else 0
        gaps = np.stack([np.concatenate([[0], ends[:-1]]), starts], axis=1) if len(ends) else np.empty((0, 2))
        self._gaps: Iterator[list[int]] = iter(gaps[gaps[:, 1] > gaps[:, 0]].astype(np.int64).tolist())
        self._start, self._stop = 0, 0

    def take(self, length: int) -> int:
        """Return where the next `length` bytes may be written: in a large enough gap, or at the end."""
        while self._stop - self._start < length:
            gap = next(self._gaps, None)
            if gap is None:
                self._end += length
                return self._end - length
            self._start, self._stop = gap
        self._start += length
        return self._start - length


def unchanged(before: RowIndex | None, rows: Rows) -> Integers:
    """Return where unchanged vectors stood in an earlier index, -1 for the others, shape (R,)."""
    positions = np.full(len(rows.keys), -1, np.int64)
    if before is None or not len(before.keys):
        return positions
    order = np.argsort(before.keys)
    at = np.minimum(np.searchsorted(before.keys, rows.keys, sorter=order), len(order) - 1)
    found = order[at]
    same = (before.keys[found] == rows.keys) & (before.versions[found] == rows.versions)
    positions[same] = found[same]
    return positions
