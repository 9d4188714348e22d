"""SCAFFOLD: control variates correct the clients' drift.

Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1 with
option II. A client does s_i steps y -= eta_l (g(y) - c_i + c); then with dy_i = y - x

    c_i+ := c_i - c - dy_i / (s_i eta_l),   x := x + eta_g mean_S dy_i,   c := c + (1/N) sum_S (c_i+ - c_i).

c stays the mean of all members' c_i. The c_i are kept by the server, which sends c - c_i: a client needs no
memory, and a reply that gets lost is no different from a client that was not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.interfaces import Task
from strategies.core.options import positive
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.table import ClientTable, Rows, TableOptions

Vectors = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ScaffoldOptions(TableOptions):
    """Options of SCAFFOLD.

    Attributes
    ----------
    server_rate
        eta_g.
    """

    server_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server-rate", self.server_rate)


class Scaffold(FlexibleStrategy):
    """Local steps y -= eta (g(y) - c_i + c), c_i the mean gradient of the client's last participation."""

    options_type = ScaffoldOptions
    options: ScaffoldOptions
    rule = "corrected"
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "table", "control")

    def setup(self) -> None:
        """Start with c = c_i = 0."""
        self.table = ClientTable(self.layout, self.options)
        self.control: Vectors = np.zeros(self.layout.size)

    def task(self, client: int) -> Task | None:
        """Return c - c_i; nothing while both are zero."""
        if not len(self.table):
            return None
        (own,) = self.table.read(np.array([client]))
        return Task(arrays=((self.control - own).astype(self.layout.dtype),))

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 12 to 17."""
        per_delta = -1 / (self.learning_rate * replies.steps)[:, None]  # mean local step / dy_i
        mean, change = np.empty(self.layout.size), np.empty(self.layout.size)

        def renewed(columns: slice, deltas: Vectors, own: Rows) -> Vectors:
            mean[columns] = deltas.sum(axis=0)
            deltas *= per_delta
            deltas -= self.control[columns]  # now c_i+ - c_i
            change[columns] = deltas.sum(axis=0)
            deltas += own
            return deltas

        self.table.change(replies, renewed)
        self.weights += self.options.server_rate * mean / len(replies)
        self.control = self.control + change / self.roster.num_contributors

    def on_arrival(self, client: int) -> None:
        """c := c N / (N + 1), the mean with the new member's c_l = 0."""
        members = self.roster.num_contributors
        self.control = self.control * ((members - 1) / members)

    def on_departure(self, client: int, keep: bool) -> None:
        """c := (N c - c_l) / (N - 1), unless the client stays in the objective."""
        if keep:
            return
        row, remaining = self.table.drop(client), self.roster.num_contributors
        total = self.control * (remaining + 1) - row
        self.control = total / remaining if remaining else np.zeros_like(total)
