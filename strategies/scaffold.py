"""SCAFFOLD: control variates correct the drift of local steps.

Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1 with
option II. A client does s_i steps y -= eta (g(y) - c_i + c); then, with dy_i = y - x,

    c_i+ := c_i - c - dy_i / (eta s_i),   x := x + eta_g mean_S dy_i,   c := c + (1/N) sum_S (c_i+ - c_i),

so that c stays the mean of all members' c_i. The c_i and their sum are kept by the server, which sends
c - c_i: a client needs no memory, and a reply that gets lost is the same as a client that was inactive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies import (
    CORRECTED,
    Clients,
    FlexibleStrategy,
    Replies,
    ServerRateOptions,
    SummedTable,
    TableOptions,
    Task,
    Vector,
)


class Scaffold(FlexibleStrategy):
    """Local steps y -= eta (g(y) - c_i + c), c_i the mean gradient of the client's last participation."""

    suits = "very different data and many local steps, with clients that come back soon"
    options: ScaffoldOptions
    rule = CORRECTED
    saved: ClassVar[tuple[str, ...]] = ("table",)
    needs_steps = True

    def setup(self) -> None:
        """Start with c = c_i = 0."""
        self.table = SummedTable(self.layout, self.options)  # c_i
        self.c: Vector = np.zeros(self.layout.size)  # as the round's clients are sent it

    @property
    def control(self) -> Vector:
        """c, the mean of all members' c_i, shape (M,)."""
        mean: Vector = self.table.total / max(1, self.roster.num_contributors)
        return mean

    def shared_task(self) -> Task:
        """Return what the rule needs; keep c for the round, as replies that say who has data change N."""
        self.c = self.control
        return super().shared_task()

    def task(self, client: int) -> Task | None:
        """Return c - c_i; nothing while both are zero."""
        if not len(self.table):
            return None
        (own,) = self.table.read(np.array([client]))
        return Task(arrays=((self.c - own).astype(self.layout.dtype),))

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 12 to 17, for some of the M weights at a time."""
        per_delta = -1 / (self.learning_rate * replies.steps)[:, None]
        each, dx, c = np.ones(len(replies)), np.empty(self.layout.size), self.c
        for at, dy, c_i in self.table.blocks(replies):
            dx[at] = each @ dy / len(replies)  # line 16
            dy *= per_delta
            dy -= c[at]  # now c_i+ - c_i
            c_i += dy  # lines 12 and 14; their sum, and so line 17, is the table's
        self.weights += self.options.server_rate * dx  # line 17

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Take the c_l of those who left out of the sum."""
        for client in left.tolist():
            self.table.drop(client)


@dataclass(frozen=True, kw_only=True)
class ScaffoldOptions(ServerRateOptions, TableOptions):
    """Options of SCAFFOLD."""
