"""What came back from the clients of a round, and which of it counts.

An *active* reply belongs to the current round, comes from a client that was asked, reports at least one step
and one example, and carries finite weights of the right shapes. Any other is treated exactly as if nothing
had come, and is named with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.common import Code, FitRes, Parameters
from numpy.typing import NDArray

from strategies.core.parameters import FloatVector, read_arrays

MAX_EXAMPLES = 10**12  # more is a broken client; sums of n_k stay exact in float64
MAX_WEIGHT = 1e18  # more is a diverged client; sums of such weights stay finite in float32

_BLOCK = 1 << 19  # numbers converted to float64 at a time: as many as stay in the cache


@dataclass(frozen=True)
class Replies:
    """The active replies of a round, in ascending client index.

    Attributes
    ----------
    clients
        Index of each client, shape (K,).
    rows
        Local weights after training, as received, one vector of shape (M,) a client.
    origin
        Global weights that the clients started from, shape (M,).
    steps
        s_k, local steps done, shape (K,).
    planned
        E_k, local steps asked for, shape (K,).
    num_examples
        n_k, shape (K,).
    train_loss
        Mean loss over the local steps, NaN where not reported, shape (K,).
    final_loss
        Loss at the last local step, NaN where not reported, shape (K,).
    extra
        The method's own arrays of each client.
    resync
        Which clients had lost what they should remember, see clients/memory/handshake.py, shape (K,).
    """

    clients: NDArray[np.intp]
    rows: Sequence[FloatVector]
    origin: FloatVector
    steps: NDArray[np.int64]
    planned: NDArray[np.int64]
    num_examples: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    final_loss: NDArray[np.float64]
    extra: Sequence[Sequence[NDArray[Any]]] = field(default_factory=list)
    resync: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def vectors(self) -> FloatVector:
        """Local weights after training, shape (K, M)."""
        return np.stack(self.rows) if len(self) else np.empty((0, len(self.origin)), self.origin.dtype)

    @property
    def deltas(self) -> NDArray[np.float64]:
        """delta_k = local weights - global weights, pointing downhill, shape (K, M)."""
        return np.subtract(self.vectors, self.origin, dtype=np.float64)

    def by_columns(self, work: Callable[[slice, NDArray[np.float64]], None], numbers: int = _BLOCK) -> None:
        """Call `work(columns, deltas[:, columns])` until all columns are done.

        The rows are never put together: that would cost more than what is done with them.

        Parameters
        ----------
        work
            What is to be done for some of the M weights of all clients, of whose deltas it gets a copy.
        numbers
            About how many deltas at a time; as a rule, as many as stay in the cache.
        """
        width = max(1024, numbers // max(1, len(self)))
        origin = self.origin.astype(np.float64)
        for start in range(0, len(self.origin) if len(self) else 0, width):
            columns = slice(start, start + width)
            local = np.concatenate([row[columns] for row in self.rows], dtype=np.float64)
            deltas = local.reshape(len(self), -1)
            deltas -= origin[columns]
            work(columns, deltas)

    def weighted_sum(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_k coefficients_k delta_k in float64, shape (M,).

        Clients are added in ascending order, whatever the order in which they answered.
        """
        total = np.zeros(len(self.origin))

        def add(columns: slice, deltas: NDArray[np.float64]) -> None:
            total[columns] = coefficients @ deltas

        self.by_columns(add)
        return total


class Candidate(NamedTuple):
    """One reply that passed the checks that need no other reply."""

    client: int
    vector: FloatVector
    steps: int
    planned: int
    num_examples: int
    train_loss: float
    final_loss: float
    extra: Sequence[NDArray[Any]]
    resync: bool


def read_reply(
    client: int,
    result: FitRes,
    server_round: int,
    decode: Callable[[Parameters], tuple[FloatVector, list[NDArray[Any]]]],
    planned_steps: Callable[[int], int],
) -> Candidate:
    """Decode one reply.

    Parameters
    ----------
    client
        Index of the client that sent it.
    result
        What it sent.
    server_round
        The current round.
    decode
        Makes local weights, shape (M,), and the method's own arrays of what was sent.
    planned_steps
        E_k as a function of n_k.

    Raises
    ------
    ValueError
        The reply is not active; the message is the reason.
    """
    refuse_unless_in_time(result, server_round)
    metrics = result.metrics
    n = result.num_examples
    if not isinstance(n, int) or not 0 <= n <= MAX_EXAMPLES:
        raise ValueError(f"impossible number of examples {n!r}")
    if n == 0:
        raise ValueError("no examples")
    planned = planned_steps(n)
    steps = metrics.get("steps", planned)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= planned:
        raise ValueError(f"impossible number of steps {steps!r} of {planned}")
    if steps == 0:
        raise ValueError("no local steps")
    vector, extra = decode(result.parameters)
    if vector.dtype.kind != "f":
        raise ValueError(f"weights of type {vector.dtype}")
    for array in (vector, *extra):
        _check_range(array)
    losses = _loss(metrics, "train-loss"), _loss(metrics, "final-loss")
    return Candidate(client, vector, steps, planned, n, *losses, extra, metrics.get("resync") is True)


def refuse_unless_in_time(result: FitRes, server_round: int) -> None:
    """Raise ValueError if the client failed, or answers another round."""
    if result.status.code != Code.OK:
        raise ValueError(result.status.message or f"status {result.status.code.name}")
    if result.metrics.get("round", server_round) != server_round:
        raise ValueError(f"late reply of round {result.metrics['round']!r}")


def read_vector(parameters: Parameters, size: int) -> FloatVector:
    """Return the only array, shape (M,), of a client that sends something else than its weights.

    Raises
    ------
    ValueError
        Something else was sent.
    """
    arrays = read_arrays(parameters)
    shapes = [array.shape for array in arrays]
    if shapes != [(size,)]:
        expected = f"one of ({size},) is expected; memory=client needs the clients of flexfl"
        raise ValueError(f"arrays of shapes {shapes} where {expected}")
    if not np.issubdtype(arrays[0].dtype, np.floating):
        raise ValueError(f"a vector of type {arrays[0].dtype}")
    _check_range(arrays[0])
    return arrays[0]


def collect(candidates: Mapping[int, Candidate], origin: FloatVector) -> Replies:
    """Stack the replies of a round in ascending client index."""
    rows = [candidates[client] for client in sorted(candidates)]
    return Replies(
        clients=np.array([r.client for r in rows], np.intp),
        rows=[r.vector for r in rows],
        origin=origin,
        steps=np.array([r.steps for r in rows], np.int64),
        planned=np.array([r.planned for r in rows], np.int64),
        num_examples=np.array([r.num_examples for r in rows], np.int64),
        train_loss=np.array([r.train_loss for r in rows], np.float64),
        final_loss=np.array([r.final_loss for r in rows], np.float64),
        extra=[r.extra for r in rows],
        resync=np.array([r.resync for r in rows], np.bool_),
    )


def _check_range(array: NDArray[Any]) -> None:
    """Refuse NaN, infinities, and numbers with which a sum could overflow."""
    if not array.size:
        return
    if array.dtype.kind == "f" and float(np.vdot(array, array)) < MAX_WEIGHT**2:  # False for NaN
        return
    low, high = float(array.min()), float(array.max())  # NaN if any is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("weights are not finite")
    if max(-low, high) > MAX_WEIGHT:
        raise ValueError(f"weights as large as {max(-low, high):.1e}")


def _loss(metrics: Mapping[str, Any], key: str) -> float:
    """Return a loss that a client may or may not report."""
    value = metrics.get(key)
    try:
        return float(value) if isinstance(value, int | float) else float("nan")
    except OverflowError:  # an integer beyond the floats
        return float("nan")
