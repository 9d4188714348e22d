"""The replies that count in a round, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.instructions import Sent
from strategies.core.parameters import FloatVector, combined_buffers
from strategies.core.reply_vectors import (
    BLOCK,
    ReplyVectors,
    add_weighted,
    let_go_of_columns,
    read_block,
    sum_buffer,
)

_BLOCK = 1 << 16  # numbers converted to float64 at a time: as many as stay in the cache


@dataclass(frozen=True)
class Replies:
    """The active replies of a round, in ascending client index.

    Attributes
    ----------
    clients
        Index of each client, shape (K,).
    sent
        What each of them was sent for its task, which may be that of an earlier round. K entries.
    order
        At which position each reply arrived in the round, shape (K,).
    steps, planned
        s_k and E_k, local steps done and asked for, shape (K,).
    num_examples
        n_k, shape (K,).
    train_loss, final_loss, rms_loss
        Mean loss over the local steps, that of the last one, and their root mean square, NaN where not
        reported, shape (K,).
    seconds
        How long each reply took, NaN where not measured, shape (K,).
    resync
        Which clients had lost their state, see clients/memory/handshake.py. Shape (K,).
    vectors, origins
        delta_k = vectors[k] - origins[k], each of shape (M,): the local weights and those that the client
        started from; or where clients send their updates, these and zeros. The origins are often all the
        same object. Remote vectors are fetched when they are read; `weighted_sum` leaves them where they are.
    buffers
        The model's buffers at each client, K vectors. The base class averages them; methods leave them alone.
    extra
        The method's own arrays of each client.
    size
        M.
    version
        How often the global weights have changed so far.
    """

    clients: NDArray[np.intp]
    sent: Sequence[Sent]
    order: NDArray[np.intp]
    steps: NDArray[np.int64]
    planned: NDArray[np.int64]
    num_examples: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    final_loss: NDArray[np.float64]
    rms_loss: NDArray[np.float64]
    seconds: NDArray[np.float64]
    resync: NDArray[np.bool_]
    vectors: ReplyVectors
    origins: Sequence[FloatVector]
    buffers: Sequence[FloatVector]
    extra: Sequence[Sequence[NDArray[Any]]]
    size: int
    version: int

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def learning_rate(self) -> NDArray[np.float64]:
        """Rate of the round in which each client got its task, shape (K,)."""
        return np.array([task.learning_rate for task in self.sent], np.float64)

    @cached_property
    def lag(self) -> NDArray[np.int64]:
        """How often the global weights have changed since then, 0 for replies on time, shape (K,)."""
        return self.version - np.array([task.version for task in self.sent], np.int64)

    @property
    def deltas(self) -> NDArray[np.float64]:
        """delta_k = local weights - those that the client started from, pointing downhill, shape (K, M)."""
        deltas = np.empty((len(self), self.size))
        for at, block in self.blocks():
            deltas[:, at] = block
        return deltas

    def blocks(self, numbers: int = _BLOCK) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield some of the M columns at a time, and their deltas of all clients, shape (K, columns).

        The deltas may be overwritten: they are a copy, in memory that the next block uses again. A block has
        about `numbers` of them; by default, as many as stay in the cache.
        """
        if not len(self):
            return
        width = min(max(512, numbers // len(self)), max(1, self.size))
        buffer, held = np.empty(len(self) * width), 0
        vectors, origins = self.vectors[:], self._origins(slice(0, len(self)))
        for start in range(0, self.size, width):
            at = slice(start, min(start + width, self.size))
            yield at, read_block(vectors, origins, at, buffer)
            held = let_go_of_columns(vectors, held, at.stop, self.size)

    def sizes(self, weights: str) -> NDArray[np.float64]:
        """n_k with `n`, 1 for each with `uniform`, shape (K,)."""
        return self.num_examples.astype(np.float64) if weights == "n" else np.ones(len(self))

    def mean_coefficients(self, weights: str) -> NDArray[np.float64]:
        """n_k / sum_S n_k with `n`, 1 / K with `uniform` (MimiC eq. 4), shape (K,)."""
        sizes = self.sizes(weights)
        return sizes / float(sizes.sum())

    def work_factors(self, normalize: bool) -> NDArray[np.float64]:
        """E_k / s_k, by which incomplete work is scaled up; 1 where it is taken as it is. Shape (K,)."""
        return self.planned / self.steps if normalize else np.ones(len(self))

    def weighted_sum(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_k coefficients_k delta_k in float64, shape (M,); the order of arrival makes no difference."""
        total, buffer = np.zeros(self.size), sum_buffer(len(self), self.size)
        blocks = [slice(top, min(top + BLOCK, len(self))) for top in range(0, len(self), BLOCK)]
        started = [self.vectors.start_sum(some, coefficients[some], self._common_origin) for some in blocks]
        for some, result in zip(blocks, started, strict=True):
            if result and (summed := result()) is not None:
                total += summed
            else:
                add_weighted(total, coefficients[some], self.vectors[some], self._origins(some), buffer)
        return total

    def mean_buffers(self) -> NDArray[np.float64]:
        """sum_S n_k b_k / sum_S n_k, the mean of the clients' buffers, all in one vector."""
        return combined_buffers(self.mean_coefficients("n"), np.array(self.buffers, np.float64))

    def mean_train_loss(self) -> float | None:
        """Mean of the training losses that were reported, weighted by n_k; None: there are none."""
        known = np.isfinite(self.train_loss)
        sizes = self.num_examples[known]
        return float(self.train_loss[known] @ sizes / sizes.sum()) if known.any() else None

    def ordered_sum(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Like `weighted_sum`, one client after the other in every entry: equal entries have equal sums.

        A matrix product may add the clients of different entries in different orders.
        """
        total = np.zeros(self.size)
        for at, deltas in self.blocks():
            deltas *= coefficients[:, None]
            np.add.reduce(deltas, axis=0, out=total[at])
        return total

    @cached_property
    def _common_origin(self) -> FloatVector | None:
        """The origin of all clients; None if there are several."""
        first = self.origins[0] if self.origins else None
        return first if all(origin is first for origin in self.origins) else None

    def _origins(self, some: slice) -> FloatVector | Sequence[FloatVector]:
        """What some clients started from: one vector if all clients have it in common, else a list."""
        return self.origins[some] if self._common_origin is None else self._common_origin

    def scale(self, k: int, factor: float) -> None:
        """Multiply an update by a factor."""
        update = np.subtract(self.vectors[k], self.origins[k], dtype=np.float64)
        self.vectors[k] = (self.origins[k] + factor * update).astype(self.vectors[k].dtype)

    def kept(self, wanted: NDArray[np.bool_]) -> Replies:
        """Return some of the replies; `wanted` has shape (K,)."""
        columns: dict[str, Any] = {
            name: column[wanted] if isinstance(column, np.ndarray) else [*compress(column, wanted)]
            for name, column in vars(self).items()
            if name in _COLUMNS
        }
        return replace(self, **columns, vectors=self.vectors.chosen(np.flatnonzero(wanted)))

    @classmethod
    def none(cls, size: int) -> Replies:
        """Return no replies to a model of `size` weights."""
        empty: dict[str, Any] = {field.name: np.empty(0, np.int64) for field in fields(cls)}
        lists: dict[str, Any] = {name: [] for name in ("sent", "origins", "buffers", "extra")}
        return cls(**{**empty, **lists, "vectors": ReplyVectors([]), "size": size, "version": 0})


_COLUMNS = {field.name for field in fields(Replies)} - {"vectors", "size", "version"}
