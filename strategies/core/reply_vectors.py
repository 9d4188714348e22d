"""The vectors of a round's replies, some of which may still lie on the machines that trained them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fedtide.base.spill import let_go
from strategies.core.parameters import FloatVector

BLOCK = 32  # clients that a sum adds at a time
# Numbers of each that are converted to float64 at a time: those of a block stay in the cache.
_WIDTH = 1 << 13
_HELD, _FEW = 1 << 26, 1 << 20  # numbers that are read until they are let go; so few never are

Pending = Callable[[], NDArray[np.float64] | None]
"""Waits for a sum that has been started; None: a machine has failed."""


class RemoteVectors(ABC):
    """What the machines that trained clients of a round keep of them."""

    @abstractmethod
    def fetch(self, vectors: Sequence[RemoteVector]) -> Sequence[FloatVector]:
        """Return copies of some of the vectors."""

    @abstractmethod
    def start_sum(
        self,
        vectors: Sequence[FloatVector | RemoteVector],
        coefficients: NDArray[np.float64],
        origin: FloatVector,
    ) -> Pending | None:
        """Have `add_weighted` done where some of the vectors lie, for as many columns as `origin` has.

        None: this origin is not at the machines.
        """


@dataclass(frozen=True, eq=False)
class RemoteVector:
    """A client's weights and buffers, of which only the buffers are here.

    Attributes
    ----------
    where
        What else the round has of this kind.
    size, nbytes
        Its size, in numbers and in bytes.
    buffers
        Its last numbers, those of the model's buffers.
    """

    where: RemoteVectors
    size: int
    nbytes: int
    buffers: FloatVector


class ReplyVectors(Sequence[FloatVector]):
    """K vectors. Those that are remote are fetched when somebody reads them; all of them, if one is read.

    `size`: how many numbers of each count, the first ones; by default, all.
    """

    def __init__(self, vectors: Iterable[FloatVector | RemoteVector], size: int | None = None) -> None:
        self._vectors, self._size = [*vectors], size
        if size is not None:
            self._vectors = [v[:size] if isinstance(v, np.ndarray) else v for v in self._vectors]
        self._all_here = all(isinstance(v, np.ndarray) for v in self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    @overload
    def __getitem__(self, at: int) -> FloatVector: ...
    @overload
    def __getitem__(self, at: slice) -> list[FloatVector]: ...
    def __getitem__(self, at: int | slice) -> FloatVector | list[FloatVector]:
        if not self._all_here:
            self._fetch(at if isinstance(at, slice) else slice(None))
        return self._vectors[at]  # type: ignore[return-value]

    def __setitem__(self, k: int, vector: FloatVector) -> None:
        self._vectors[k] = vector

    def __iter__(self) -> Iterator[FloatVector]:
        return iter(self[:])

    @property
    def nbytes(self) -> int:
        """Size of all of them, wherever they are, with the numbers that do not count."""
        return sum(vector.nbytes for vector in self._vectors)

    def chosen(self, positions: Iterable[int]) -> ReplyVectors:
        """Return some of the vectors."""
        return ReplyVectors([self._vectors[k] for k in positions], self._size)

    @classmethod
    def joined(cls, parts: Iterable[ReplyVectors]) -> ReplyVectors:
        """Return the vectors of several of these, one after the other."""
        return cls(vector for part in parts for vector in part._vectors)

    def split(self, size: int) -> tuple[ReplyVectors, list[FloatVector]]:
        """Return the first numbers of each vector, of which there are `size`, and the others, its buffers."""
        buffers = [v[size:] if isinstance(v, np.ndarray) else v.buffers for v in self._vectors]
        return ReplyVectors(self._vectors, size), buffers

    def start_sum(
        self, some: slice, coefficients: NDArray[np.float64], origin: FloatVector | None
    ) -> Pending | None:
        """Have `add_weighted` done elsewhere, see `RemoteVectors.start_sum`; None: that saves nothing."""
        if self._all_here or origin is None:
            return None
        vectors = self._vectors[some]
        remote = [vector for vector in vectors if isinstance(vector, RemoteVector)]
        if len(remote) <= len(vectors) - len(remote) + 2:  # a sum is as large as two vectors
            return None
        return remote[0].where.start_sum(vectors, coefficients, origin)

    def _fetch(self, some: slice) -> None:
        wanted = {k: v for k in range(len(self))[some] if isinstance(v := self._vectors[k], RemoteVector)}
        if wanted:
            remote = [*wanted.values()]
            for k, vector in zip(wanted, remote[0].where.fetch(remote), strict=True):
                self._vectors[k] = vector[: self._size]


def read_block(
    vectors: Sequence[FloatVector],
    origins: FloatVector | Sequence[FloatVector],
    at: slice,
    buffer: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return deltas of some clients, in some columns, written to the beginning of a buffer.

    `origins`: what all of them started from, or what each.
    """
    block = buffer[: len(vectors) * (at.stop - at.start)].reshape(len(vectors), -1)
    np.concatenate([vector[at] for vector in vectors], out=block.reshape(-1))
    if isinstance(origins, np.ndarray):
        block -= origins[at].astype(np.float64)
    else:
        block -= np.array([origin[at] for origin in origins], np.float64)
    return block


def sum_buffer(clients: int, size: int) -> NDArray[np.float64]:
    """Return memory for sums over up to so many clients, of M numbers each."""
    return np.empty(min(clients, BLOCK) * min(size, _WIDTH))


def add_weighted(
    total: NDArray[np.float64],
    coefficients: NDArray[np.float64],
    vectors: Sequence[FloatVector],
    origins: FloatVector | Sequence[FloatVector],
    buffer: NDArray[np.float64],
) -> None:
    """Add sum_k coefficients_k (vectors_k - origins_k) to `total`, shape (M,), for one block of clients.

    The same operations in the same order wherever it is done, and so the same bits. `buffer`: see
    `sum_buffer`.
    """
    size, held = len(total), 0
    width = min(size, _WIDTH)
    for left in range(0, size, width):
        at = slice(left, min(left + width, size))
        total[at] += coefficients @ read_block(vectors, origins, at, buffer)
        held = let_go_of_columns(vectors, held, at.stop, size)


def let_go_of_columns(vectors: Sequence[FloatVector], held: int, stop: int, size: int) -> int:
    """Let go of columns that have been read, up to `stop`, if they are many or the last of `size`.

    Returns the first column that is still held.
    """
    if len(vectors) * (stop - held) < (_FEW if stop == size else _HELD):
        return held
    for vector in vectors:
        let_go(vector[held:stop])
    return stop
