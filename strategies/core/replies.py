"""A round's replies as one table: all that have come, and those of them that count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.base.contract import REPORTED, Reported, metrics
from strategies.core.parameters import (
    FlatParameters,
    FloatVector,
    Layout,
    combined_buffers,
    count_bytes,
    read_number,
)
from strategies.core.reply_vectors import (
    BLOCK,
    ReplyVectors,
    add_weighted,
    let_go_of_columns,
    read_block,
    sum_buffer,
)
from strategies.core.roster import ClientWeights
from strategies.core.round import Sent

_BLOCK = 1 << 16  # numbers converted to float64 at a time: as many as stay in the cache

FitResult = tuple[ClientProxy, FitRes]
Arrays = Sequence[NDArray[Any]]
Number = TypeVar("Number", bound=np.generic)
NO_LAYOUT = Layout((), np.dtype(np.float32))  # before the method's own arrays
OK = Status(Code.OK, "")


@dataclass(frozen=True, kw_only=True)
class ReplyTable:
    """The replies of a round in the order in which they came, a row for each of K.

    Simulated clients fill the columns. Of replies that came through Flower, `results` has what the client
    sent, which a strategy reads when it knows the client's task.

    Attributes
    ----------
    reported
        What clients report on their tasks, see `REPORTED`.
    vectors, layout
        Weights and buffers of each simulated client, and their layout; the buffers alone of clients that send
        no weights.
    extra
        The arrays that each simulated client sends after these; empty: none sends any.
    farewells
        The states that simulated clients hand in as they leave, by the clients' names.
    names, results
        What Flower calls the clients, and the replies that came through Flower; empty in a simulation.
    """

    reported: Reported
    vectors: ReplyVectors = field(default_factory=lambda: ReplyVectors([]))
    layout: Layout = NO_LAYOUT
    extra: Sequence[Arrays] = ()
    farewells: Mapping[str, Arrays] = field(default_factory=dict)
    names: Sequence[str] = ()
    results: Sequence[FitRes] = ()

    @classmethod
    def of(cls, results: ReplyTable | Sequence[FitResult]) -> ReplyTable:
        """Return the replies that Flower hands over, or a table as it is."""
        if isinstance(results, ReplyTable):
            return results
        reported = np.zeros(len(results), REPORTED)
        for k, (proxy, result) in enumerate(results):
            name, told = proxy.cid, result.metrics
            reported["client"][k] = int(name) if name.isdecimal() and len(name) <= 18 else -1
            reported["seconds"][k] = read_number(told if isinstance(told, Mapping) else {}, metrics.SECONDS)
        names, sent = [proxy.cid for proxy, _ in results], [result for _, result in results]
        return cls(reported=reported, names=names, results=sent)

    @classmethod
    def joined(cls, tables: Sequence[ReplyTable]) -> ReplyTable:
        """Return the rows and farewells of several tables, one after the other."""
        any_extra = any(table.extra for table in tables)
        return cls(
            reported=np.concatenate([np.empty(0, REPORTED), *(table.reported for table in tables)]),
            vectors=ReplyVectors.joined([table.vectors for table in tables]),
            layout=next((table.layout for table in tables if len(table.vectors)), NO_LAYOUT),
            extra=[t._extra(k) for t in tables for k in range(len(t))] if any_extra else (),
            farewells={name: state for table in tables for name, state in table.farewells.items()},
            names=[name for table in tables for name in table.names],
            results=[result for table in tables for result in table.results],
        )

    def __len__(self) -> int:
        return len(self.reported)

    @property
    def num_bytes(self) -> int:
        """Size of all that the clients sent, without any framing."""
        own = [*self.extra, *self.farewells.values()]
        simulated = self.vectors.nbytes + sum(array.nbytes for arrays in own for array in arrays)
        return simulated + sum(count_bytes(result.parameters) for result in self.results)

    def row_bytes(self, k: int) -> int:
        """Return the size of what the client of a row sent."""
        return replace(self.chosen(np.array([k])), farewells={}).num_bytes

    def name(self, k: int) -> str:
        """What Flower calls the client of a row."""
        return self.names[k] if self.names else str(self.reported["client"][k])

    def sent(self, k: int) -> Parameters:
        """Return all arrays that the client of a row sent."""
        return self.results[k].parameters if self.results else self._flat(self.vectors[k], self._extra(k))

    def chosen(self, rows: NDArray[np.intp]) -> ReplyTable:
        """Return some of the rows, and all farewells."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        at = rows.tolist()
        return replace(
            self,
            reported=self.reported[rows],
            vectors=self.vectors.chosen(at) if len(self.vectors) else self.vectors,
            extra=[self.extra[k] for k in at] if self.extra else (),
            names=[self.names[k] for k in at] if self.names else (),
            results=[self.results[k] for k in at] if self.results else (),
        )

    def row(self, k: int) -> ReplyTable:
        """Return one row alone, with arrays of its own."""
        row = replace(self.chosen(np.array([k])), farewells={})
        vectors = ReplyVectors(vector.copy() for vector in row.vectors)
        extra = [[array.copy() for array in arrays] for arrays in row.extra]
        return replace(row, reported=row.reported.copy(), vectors=vectors, extra=extra)

    def with_seconds(self, seconds: Sequence[float]) -> ReplyTable:
        """Return the table with the time that each reply took."""
        reported = self.reported.copy()
        reported["seconds"] = seconds
        told = zip(self.results, seconds, strict=False)  # no results in a simulation
        results = [replace(r, metrics={**r.metrics, metrics.SECONDS: took}) for r, took in told]
        return replace(self, reported=reported, results=results)

    def as_flower(self, proxy: Callable[[int], ClientProxy]) -> list[FitResult]:
        """Return the replies as Flower's strategies know them."""
        results = [(proxy(int(row["client"])), self.result(k)) for k, row in enumerate(self.reported)]
        empty = np.empty(0, self.layout.dtype)
        for name, state in self.farewells.items():
            results.append((proxy(int(name)), FitRes(OK, self._flat(empty, state), 0, {})))
        return results

    def result(self, k: int) -> FitRes:
        """Return a row as Flower's strategies know it."""
        if self.results:
            return self.results[k]
        row = self.reported[k]
        return FitRes(OK, self.sent(k), int(row["num_examples"]), dict(metrics.of_row(row)))

    def _extra(self, k: int) -> Arrays:
        return self.extra[k] if self.extra else ()

    def _flat(self, vector: FloatVector, extra: Arrays) -> FlatParameters:
        layout = self.layout
        if len(vector) != layout.size:
            layout = layout.buffers if len(vector) else NO_LAYOUT
        return FlatParameters(vector, layout, extra)


def _column(name: str, kind: type[Number]) -> cached_property[NDArray[Number]]:
    """Return a property that reads a column of the replies' table."""
    return cached_property(lambda replies: replies.reported[name].astype(kind))


@dataclass(frozen=True)
class Replies:
    """The active replies of a round, in ascending client index.

    Attributes
    ----------
    reported
        What the clients report on their tasks, see `REPORTED`; the columns are attributes, too:
    clients
        Index of each client, shape (K,).
    steps, num_examples
        s_k and n_k, shape (K,).
    train_loss, final_loss, rms_loss
        Mean loss over the local steps, that of the last one, and their root mean square, NaN where not
        reported, shape (K,).
    seconds
        How long each reply took, NaN where not measured, shape (K,).
    resync
        Which clients had lost their state, see clients/memory/handshake.py. Shape (K,).
    planned
        E_k, the local steps asked for, shape (K,).
    sent
        What each of them was sent for its task, which may be that of an earlier round. K entries.
    order
        At which position each reply arrived in the round, shape (K,).
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

    reported: Reported
    planned: NDArray[np.int64]
    sent: Sequence[Sent]
    order: NDArray[np.intp]
    vectors: ReplyVectors
    origins: Sequence[FloatVector]
    buffers: Sequence[FloatVector]
    extra: Sequence[Arrays]
    size: int
    version: int

    clients = _column("client", np.intp)
    steps = _column("steps", np.int64)
    num_examples = _column("num_examples", np.int64)
    train_loss = _column("train_loss", np.float64)
    final_loss = _column("final_loss", np.float64)
    rms_loss = _column("rms_loss", np.float64)
    seconds = _column("seconds", np.float64)
    resync = _column("resync", np.bool_)

    def __len__(self) -> int:
        return len(self.reported)

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

    def sizes(self, weights: ClientWeights) -> NDArray[np.float64]:
        """n_k with `n`, 1 for each with `uniform`, shape (K,)."""
        return self.num_examples.astype(np.float64) if weights == "n" else np.ones(len(self))

    def mean_coefficients(self, weights: ClientWeights) -> NDArray[np.float64]:
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

    @classmethod
    def none(cls, size: int) -> Replies:
        """Return no replies to a model of `size` weights."""
        nothing = np.empty(0, np.int64)
        return cls(np.empty(0, REPORTED), nothing, [], nothing, ReplyVectors([]), [], [], [], size, 0)
