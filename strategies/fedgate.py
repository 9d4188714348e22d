"""FedGATE: local gradients are tracked towards the global one.

Haddadpour et al. 2021, "Federated Learning with Compression: Unified Analysis and Sharp Guarantees", FedGATE
(FedCOMGATE without compression). A client does s_j steps y -= eta (g(y) - delta_j); with D_j the mean step,
D_j = (w - y) / (eta s_j), and D their mean over those who replied,

    w := w - eta gamma E D,   delta_j := delta_j + D_j - D.

The delta_j of all members sum to 0. They are kept by the server, which sends -delta_j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.interfaces import Task
from strategies.core.options import choose, positive
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.table import ClientTable, Rows, TableOptions

Vectors = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FedGATEOptions(TableOptions):
    """Options of FedGATE.

    Attributes
    ----------
    mode
        `per-step` averages mean steps, so that a client that does more does not weigh more; `literal`
        averages whole updates and divides by the planned steps, as the paper has it for complete clients.
    server_rate
        gamma.
    """

    mode: str = "per-step"
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("mode", self.mode, ("per-step", "literal"))
        positive("server-rate", self.server_rate)


class GradientTracking(FlexibleStrategy):
    """Memory of methods that send each client a direction -delta_j, all of which sum to 0."""

    options_type = TableOptions
    options: TableOptions
    rule = "corrected"
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "table", "handed_over")

    def setup(self) -> None:
        """Start with delta_j = 0."""
        self.table = ClientTable(self.layout, self.options)
        self.handed_over = np.zeros(self.layout.size)  # to every member; delta_j = row + handed_over

    def tracked(self, clients: NDArray[np.intp]) -> Vectors:
        """delta_j of some members, shape (K, M)."""
        return self.table.read(clients) + self.handed_over

    def task(self, client: int) -> Task | None:
        """Return -delta_j; nothing while all are zero."""
        if not len(self.table) and not self.handed_over.any():
            return None
        (delta,) = self.tracked(np.array([client]))
        return Task(arrays=((-delta).astype(self.layout.dtype),))

    def track(self, replies: Replies, change: Callable[[slice, Vectors], None]) -> None:
        """Add to the delta_j of those who replied what `change` makes of their updates, in place.

        It is called for some columns of the updates at a time.
        """

        def tracked(columns: slice, updates: Vectors, own: Rows) -> Vectors:
            change(columns, updates)
            updates += own
            return updates

        self.table.change(replies, tracked)

    def on_arrival(self, client: int) -> None:
        """Start a new member with delta_l = 0, which keeps the sum."""
        if self.handed_over.any():
            self.table.write(np.array([client]), -self.handed_over[None])

    def on_departure(self, client: int, keep: bool) -> None:
        """Hand delta_l over to the others in equal parts, unless the client stays in the objective."""
        if keep:
            return
        (delta,) = self.tracked(np.array([client]))
        self.table.drop(client)
        remaining = self.roster.num_contributors
        self.handed_over = self.handed_over + delta / remaining if remaining else np.zeros_like(delta)


class FedGATE(GradientTracking):
    """Local steps y -= eta (g(y) - delta_j), delta_j the client's part of the disagreement."""

    options_type = FedGATEOptions
    options: FedGATEOptions

    def update(self, replies: Replies) -> None:
        """Move along the mean step and track each client's difference to it."""
        per_step = self.options.mode == "per-step"
        per_delta = -1 / (
            self.learning_rate * (replies.steps if per_step else replies.planned)
        )  # D_j / delta
        mean = np.empty(self.layout.size)  # D

        def disagreement(columns: slice, updates: Vectors) -> None:
            updates *= per_delta[:, None]
            mean[columns] = updates.mean(axis=0)
            updates -= mean[columns]

        self.track(replies, disagreement)
        planned = float(replies.planned.mean())  # E, the mean where it differs by client
        self.weights -= self.learning_rate * self.options.server_rate * planned * mean
