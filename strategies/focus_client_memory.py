"""FOCUS with the gradients at the clients (Ying et al. 2025, Algorithm 1, as printed).

A client keeps n_k G_k of its last accepted round and uploads the difference of the new one to it; the server
keeps the sum. The rules are clients/rules/focus.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedtide.ground.contract import Rule
from strategies.core import Replies, Task, Vector, extend
from strategies.focus import Focus


class FocusClientMemory(Focus):
    """FOCUS whose clients keep their G_k; of `latest`, the server keeps the sum alone."""

    rule = Rule("kept-gradient", remembers=True, sends="vector")
    rules = {"mean": rule, "last": Rule("kept-last-gradient", remembers=True, sends="vector")}  # noqa: RUF012
    saved = ("orphans",)
    late_replies = "drop"  # the client then drops its G_k, too

    def setup(self) -> None:
        """Start with G_k = 0."""
        super().setup()
        # Sizes of clients whose G_k nobody can take out of the sum any more: they left without an answer, or
        # lost their memory and count as new ones.
        self.orphans = 0.0
        self._told: dict[int, float] = {}  # n_k of those who were asked in this round

    def task(self, client: int) -> Task:
        """Return the n_k for the new gradient, and that of the one that the client keeps."""
        (share,) = self.roster.share(np.array([client]), self.options.weights)
        now = np.array([share * self.total_size()], self.layout.dtype)
        self._told[client] = float(now[0])
        self.sizes = extend(self.sizes, client + 1, 1)
        return Task(arrays=(now, self.sizes[[client]].astype(self.layout.dtype)))

    def update(self, replies: Replies) -> None:
        """Add what the clients upload, n_k G_k less what it was, and move."""
        clients = replies.clients
        contributed = self.roster.accepted[clients] > 0
        self.orphans += float(self.sizes[clients[replies.resync & contributed]].sum())
        self.latest.total += replies.ordered_sum(np.ones(len(replies)))
        self.sizes[clients] = [self._told[client] for client in clients.tolist()]
        self._told = {}
        self.planned = float(replies.planned.mean())
        self.move()

    def farewells(self, states: Mapping[int, Vector | None]) -> None:
        """Take the n_l G_l of those who left out of the sum."""
        for client, memory in states.items():
            if memory is None:
                self.orphans += self.sizes[client]
            else:
                self.latest.total -= memory

    def move(self, orphans: float = 0.0) -> None:
        """Apply w -= eta_g eta c sum p_k G_k."""
        super().move(self.orphans)
