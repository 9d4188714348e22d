"""The results of a round: Flower's list, and in columns where an engine has them.

A reply that comes over a network is checked and decoded by itself, see decoding.py. Those of many simulated
clients are checked together, which takes a tenth of the time; if one of them is anything but ordinary, each
is read by itself.
"""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from flexfl.ground.contract import Reported
from strategies.core.decoding import MAX_EXAMPLES, MAX_GROWTH, MAX_LOSS, MAX_WEIGHT
from strategies.core.options import Options
from strategies.core.parameters import FloatVector
from strategies.core.replies import Replies
from strategies.core.tasks import Sent

FitResult = tuple[ClientProxy, FitRes]


class RoundResults(UserList[FitResult]):
    """Flower's list of results, which also has what the clients report in columns.

    The list is made when somebody asks for it. From then on it alone counts, as whoever has its items may
    change them: differential privacy does.

    Parameters
    ----------
    reported
        What the clients report, K rows; they answer the task of the current round.
    vectors
        Their weights and buffers, which is all that they send.
    make
        Makes a result, given its position.

    Attributes
    ----------
    reported, vectors
        See above, in ascending order of the clients.
    """

    def __init__(
        self, reported: Reported, vectors: Sequence[FloatVector], make: Callable[[int], FitResult]
    ) -> None:
        order = np.argsort(reported["client"])
        self.reported = reported[order]
        self.vectors = [vectors[k] for k in order.tolist()]
        self._order, self._make = order, make

    @cached_property
    def data(self) -> list[FitResult]:  # type: ignore[override]
        """The list."""
        return [self._make(k) for k in self._order.tolist()]

    def __len__(self) -> int:
        return len(self.data) if self.is_list else len(self.reported)

    @property
    def num_bytes(self) -> int:
        """Size of all that the clients sent, without any framing."""
        return sum(vector.nbytes for vector in self.vectors)

    @property
    def is_list(self) -> bool:
        """Whether the list has been made, so that the columns do not count any more."""
        return "data" in self.__dict__


FitResults = list[FitResult] | RoundResults


def columns_of(results: FitResults) -> RoundResults | None:
    """Return results whose columns count; None: there is a list only."""
    return results if isinstance(results, RoundResults) and not results.is_list else None


def ordinary(
    results: RoundResults, sent: Sent, first_sizes: NDArray[np.int64], work: Options, version: int
) -> Replies | None:
    """Return the replies if all count without any doubt; otherwise None, and each has to be read by itself.

    Parameters
    ----------
    results
        The results of the round.
    sent
        What all of them were sent.
    first_sizes
        The number of examples that each client had first, shape (K,); 0: not known.
    work
        What they were asked to do.
    version
        How often the global weights have changed so far.
    """
    reported, origin = results.reported, sent.weights.weights
    n, steps = reported["num_examples"], reported["steps"]
    planned = np.array([work.planned_steps(size) for size in n.tolist()], np.int64)
    possible = (n > 0) & (n <= MAX_EXAMPLES) & (steps > 0) & (steps <= planned)
    possible &= (first_sizes == 0) | (n <= MAX_GROWTH * first_sizes)
    # No weight is larger than their norm, which is at most that of the old weights plus that of the update.
    largest = float(np.linalg.norm(origin.astype(np.float64))) + reported["update_norm"]
    with np.errstate(invalid="ignore"):
        possible &= largest < MAX_WEIGHT * (steps / np.maximum(planned, 1))  # False for NaN
    in_layout = all(len(v) == len(sent.weights.vector) and v.dtype.kind == "f" for v in results.vectors)
    if not possible.all() or not in_layout:
        return None
    size = len(origin)
    return Replies(
        clients=reported["client"].astype(np.intp),
        vectors=[vector[:size] for vector in results.vectors],
        origins=[origin] * len(results),
        size=size,
        learning_rate=np.full(len(results), sent.learning_rate),
        lag=np.full(len(results), version - sent.version),
        steps=steps.copy(),
        planned=planned,
        num_examples=n.copy(),
        train_loss=_losses(reported["train_loss"]),
        final_loss=_losses(reported["final_loss"]),
        extra=[()] * len(results),
        resync=reported["resync"].copy(),
        buffers=[vector[size:] for vector in results.vectors],
    )


def _losses(reported: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return losses, NaN where they are impossible."""
    return np.where(np.abs(reported) <= MAX_LOSS, reported, np.nan)
