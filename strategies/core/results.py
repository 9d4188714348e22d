"""The results of a round: Flower's list of them, or columns."""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.ground.contract import Reported
from strategies.core.parameters import FloatVector

FitResult = tuple[ClientProxy, FitRes]


class RoundResults(UserList[FitResult]):
    """Flower's list of results, which also has what the clients report in columns.

    The columns are given in the order of arrival: what clients report on the task of the current round, and
    their weights and buffers, which is all that they send. `make`, given a position, makes the list's items
    when somebody asks for it. From then on it alone counts, as differential privacy changes the items.
    """

    def __init__(
        self, reported: Reported, vectors: Sequence[FloatVector], make: Callable[[int], FitResult]
    ) -> None:
        self.order: NDArray[np.intp] = np.argsort(reported["client"])  # the columns are in ascending order
        self.reported = reported[self.order]
        self.vectors = [vectors[k] for k in self.order.tolist()]
        self._make = make

    @cached_property
    def data(self) -> list[FitResult]:  # type: ignore[override]
        """The list."""
        return [self._make(k) for k in self.order.tolist()]

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
