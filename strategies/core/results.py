"""The results of a round: Flower's list of them, or columns."""

from __future__ import annotations

import math
from collections import UserList
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from flwr.common import Code, FitRes, Status
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.ground.contract import Reported, metrics
from strategies.core.parameters import FlatParameters, FloatVector, Layout
from strategies.core.reply_vectors import RemoteVector, ReplyVectors


class ClientFailure(Exception):  # noqa: N818 - an event of the round, passed on as Flower passes failures
    """A client that was asked and did not return a valid reply.

    `seconds` is how long it took until that was known; NaN: not measured.
    """

    def __init__(self, client: str, reason: str, seconds: float = math.nan) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason, self.seconds = client, reason, seconds


FitResult = tuple[ClientProxy, FitRes]


class RoundResults(UserList[FitResult]):
    """Flower's list of results, which also has what the clients report in columns.

    The columns are given in the order of arrival: what clients report on their tasks, and their weights and
    buffers of this layout, which is all that they send. `proxy` returns that of a client. The list's items
    are made when somebody asks for one. From then on the list alone counts, as differential privacy changes
    the items.
    """

    def __init__(
        self,
        reported: Reported,
        vectors: Sequence[FloatVector | RemoteVector],
        layout: Layout,
        proxy: Callable[[int], ClientProxy],
    ) -> None:
        self.order: NDArray[np.intp] = np.argsort(reported["client"])  # the columns are in ascending order
        self.reported = reported[self.order]
        self.vectors = ReplyVectors([vectors[k] for k in self.order.tolist()])
        self.layout, self._proxy = layout, proxy

    @cached_property
    def data(self) -> list[FitResult]:  # type: ignore[override]
        """The list, in the order of arrival."""
        return [self._item(k) for k in np.argsort(self.order).tolist()]

    def _item(self, k: int) -> FitResult:
        row, sent = self.reported[k], FlatParameters(self.vectors[k], self.layout)
        result = FitRes(Status(Code.OK, ""), sent, int(row["num_examples"]), dict(metrics.of_row(row)))
        return self._proxy(int(row["client"])), result

    def __len__(self) -> int:
        return len(self.data) if self.is_list else len(self.reported)

    @property
    def num_bytes(self) -> int:
        """Size of all that the clients sent, without any framing."""
        return self.vectors.nbytes

    @property
    def is_list(self) -> bool:
        """Whether the list has been made, so that the columns do not count any more."""
        return "data" in self.__dict__


FitResults = list[FitResult] | RoundResults


def columns_of(results: FitResults) -> RoundResults | None:
    """Return results whose columns count; None: there is a list only."""
    return results if isinstance(results, RoundResults) and not results.is_list else None
