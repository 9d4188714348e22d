"""The replies that count in a round, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import FloatVector

NO_BUFFERS: FloatVector = np.empty(0)
_BLOCK = 1 << 16  # numbers converted to float64 at a time: as many as stay in the cache
_WIDTH, _HEIGHT = 1 << 13, 32  # of such a block in a sum


class Reply(NamedTuple):
    """One active reply.

    Attributes
    ----------
    client
        Index of the client.
    vector
        Its local weights, or its update if it sends such, shape (M,).
    origin
        Weights that it was sent for its task, shape (M,); None: it sent its update.
    learning_rate
        Rate of the task's round.
    version
        How often the global weights had changed by then.
    steps, planned
        s_k and E_k, local steps done and asked for.
    num_examples
        n_k.
    train_loss, final_loss
        Mean loss over the local steps and that of the last one, NaN where not reported.
    extra
        The method's own arrays.
    resync
        Whether the client had lost its state, see clients/memory/handshake.py.
    buffers
        The model's buffers after training, all in one vector, which is empty for most models.
    """

    client: int
    vector: FloatVector
    origin: FloatVector | None
    learning_rate: float
    version: int
    steps: int
    planned: int
    num_examples: int
    train_loss: float
    final_loss: float
    extra: Sequence[NDArray[Any]]
    resync: bool
    buffers: FloatVector = NO_BUFFERS


@dataclass(frozen=True)
class Replies:
    """The active replies of a round, in ascending client index.

    Attributes
    ----------
    clients
        Index of each client, shape (K,).
    vectors
        What each client sent: local weights, or updates if `origins` is None. K vectors of shape (M,).
    origins
        What each client started from, K vectors of shape (M,), often all the same object; None: they sent
        updates.
    size
        M.
    learning_rate
        Rate of the round in which each client got its task, shape (K,).
    lag
        How often the global weights have changed since then, 0 for replies on time, shape (K,).
    steps
        s_k, local steps done, shape (K,).
    planned
        E_k, local steps asked for, shape (K,).
    num_examples
        n_k, shape (K,).
    train_loss, final_loss
        Mean loss over the local steps and that of the last one, NaN where not reported, shape (K,).
    extra
        The method's own arrays of each client.
    resync
        Which clients had lost their state, shape (K,).
    buffers
        The model's buffers at each client, K vectors. The base class averages them; methods leave them alone.
    """

    clients: NDArray[np.intp]
    vectors: Sequence[FloatVector]
    origins: Sequence[FloatVector] | None
    size: int
    learning_rate: NDArray[np.float64]
    lag: NDArray[np.int64]
    steps: NDArray[np.int64]
    planned: NDArray[np.int64]
    num_examples: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    final_loss: NDArray[np.float64]
    extra: Sequence[Sequence[NDArray[Any]]] = field(default_factory=list)
    resync: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    buffers: Sequence[FloatVector] = ()

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def deltas(self) -> NDArray[np.float64]:
        """delta_k = local weights - those that the client started from, pointing downhill, shape (K, M)."""
        deltas = np.empty((len(self), self.size))
        for at, block in self.blocks():
            deltas[:, at] = block
        return deltas

    def blocks(self, numbers: int = _BLOCK) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield all deltas, some of the M columns at a time.

        Parameters
        ----------
        numbers
            About how many deltas at a time; by default, as many as stay in the cache.

        Yields
        ------
        columns, deltas
            The columns, and their deltas of all clients, shape (K, columns). These may be overwritten: they
            are a copy, in memory that the next block uses again.
        """
        if not len(self):
            return
        width = min(max(512, numbers // len(self)), max(1, self.size))
        buffer, common = np.empty(len(self) * width), self._common_origin()
        for start in range(0, self.size, width):
            at = slice(start, min(start + width, self.size))
            origin = None if common is None else common[at].astype(np.float64)
            yield at, self._block(slice(0, len(self)), at, origin, buffer)

    def sizes(self, weights: str) -> NDArray[np.float64]:
        """n_k with `n`, 1 for each with `uniform`, shape (K,)."""
        return self.num_examples.astype(np.float64) if weights == "n" else np.ones(len(self))

    def mean_coefficients(self, weights: str) -> NDArray[np.float64]:
        """n_k / sum_S n_k with `n`, 1 / |S| with `uniform` (MimiC eq. 4), shape (K,)."""
        sizes = self.sizes(weights)
        return sizes / float(sizes.sum())

    def work_factors(self, normalize: bool) -> NDArray[np.float64]:
        """E_k / s_k, by which incomplete work is scaled up; 1 where it is taken as it is. Shape (K,)."""
        return self.planned / self.steps if normalize else np.ones(len(self))

    def weighted_sum(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_k coefficients_k delta_k in float64, shape (M,).

        Clients are added in ascending order, whatever the order in which they answered, some of them at a
        time: as many as stay in the cache.
        """
        total, width = np.zeros(self.size), min(self.size, _WIDTH)
        buffer, common = np.empty(_HEIGHT * width), self._common_origin()
        for left in range(0, self.size, width):
            at = slice(left, min(left + width, self.size))
            origin = None if common is None else common[at].astype(np.float64)
            for top in range(0, len(self), _HEIGHT):
                some = slice(top, min(top + _HEIGHT, len(self)))
                total[at] += coefficients[some] @ self._block(some, at, origin, buffer)
        return total

    def mean_buffers(self) -> NDArray[np.float64]:
        """sum_S n_k b_k / sum_S n_k, the mean of the clients' buffers, all in one vector."""
        rows = np.array(self.buffers, np.float64)
        return self.mean_coefficients("n") @ rows

    def ordered_sum(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Like `weighted_sum`, one client after the other in every entry: equal entries have equal sums.

        A matrix product may add the clients of different entries in different orders.
        """
        total = np.zeros(self.size)
        for at, deltas in self.blocks():
            deltas *= coefficients[:, None]
            np.add.reduce(deltas, axis=0, out=total[at])
        return total

    def _block(
        self, some: slice, at: slice, origin: NDArray[np.float64] | None, buffer: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return deltas of some clients, in some columns, written to the beginning of a buffer.

        `origin` is what all have started from, in these columns, or None.
        """
        count = some.stop - some.start
        block = buffer[: count * (at.stop - at.start)].reshape(count, -1)
        np.concatenate([vector[at] for vector in self.vectors[some]], out=block.reshape(-1))
        if origin is not None:
            block -= origin
        elif self.origins is not None:
            block -= np.array([started[at] for started in self.origins[some]], np.float64)
        return block

    def _common_origin(self) -> FloatVector | None:
        """The weights that all clients started from; None if there are several, or none."""
        first = self.origins[0] if self.origins else None
        return first if all(origin is first for origin in self.origins or ()) else None

    @classmethod
    def collect(cls, replies: Mapping[int, Reply], size: int, version: int) -> Replies:
        """Bring the replies of a round, given by client, into the order of the clients.

        `size` is M, `version` how often the global weights have changed so far.
        """
        rows = [replies[client] for client in sorted(replies)]
        origins = [r.origin for r in rows if r.origin is not None]
        return cls(
            clients=np.array([r.client for r in rows], np.intp),
            vectors=[r.vector for r in rows],
            origins=origins if len(origins) == len(rows) else None,
            size=size,
            learning_rate=np.array([r.learning_rate for r in rows], np.float64),
            lag=np.array([version - r.version for r in rows], np.int64),
            steps=np.array([r.steps for r in rows], np.int64),
            planned=np.array([r.planned for r in rows], np.int64),
            num_examples=np.array([r.num_examples for r in rows], np.int64),
            train_loss=np.array([r.train_loss for r in rows], np.float64),
            final_loss=np.array([r.final_loss for r in rows], np.float64),
            extra=[r.extra for r in rows],
            resync=np.array([r.resync for r in rows], np.bool_),
            buffers=[r.buffers for r in rows],
        )
