"""FOCUS with the gradients at the clients (Ying et al. 2025, Algorithm 1, as printed).

A client keeps n_k G_k of its last accepted round and uploads the difference of the new one to it; the server
keeps the sum. The rules are clients/rules/focus.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from strategies import Replies, Rule, Task, Vector, extend
from strategies.focus import Focus


class FocusClientMemory(Focus):
    """FOCUS whose clients keep their G_k; of `latest`, the server keeps the sum alone."""

    rule = Rule("kept-gradient", remembers=True, sends="vector")
    rules = {"mean": rule, "last": Rule("kept-last-gradient", remembers=True, sends="vector")}  # noqa: RUF012
    saved = ("orphans", "units")
    late_replies = "drop"  # the client then drops its G_k, too

    def setup(self) -> None:
        """Start with G_k = 0."""
        super().setup()
        self.orphans = 0.0  # of those who left without an answer, or lost their memory and count as new ones
        # By which a client's n_k are divided, for the client: 1, or the first n_k of one whose n_k was not
        # known when it was asked first, so that it was told 1. Shape (N,) or longer.
        self.units: NDArray[np.float64] = np.ones(0)
        self._known: dict[int, float] = {}  # n_k of those who were asked in this round, as far as it is known

    def task(self, client: int) -> Task:
        """Return n_k for the new gradient, and that of the one that the client keeps, in its unit."""
        self.sizes, self.units = (extend(column, client + 1, 1) for column in (self.sizes, self.units))
        n = 1.0 if self.options.weights == "uniform" else float(self.roster.num_examples[client])
        self._known[client], unit = n, self.units[client]
        told = np.array([n / unit if n else 1.0, self.sizes[client] / unit], self.layout.dtype)
        return Task(arrays=(told[:1], told[1:]))

    def update(self, replies: Replies) -> None:
        """Add what the clients upload, n_k G_k less what it was, and move."""
        clients = replies.clients
        known = np.array([self._known[client] for client in clients.tolist()])
        n = np.where(known > 0, known, replies.sizes(self.options.weights))
        self.units[clients] = np.where(known > 0, self.units[clients], n)
        contributed = self.roster.accepted[clients] > 0
        self.orphans += float(self.sizes[clients[replies.resync & contributed]].sum())
        self.latest.total += replies.ordered_sum(self.units[clients])
        self.sizes[clients], self._known = n, {}
        self.planned = float(replies.planned.mean())
        self.move()

    def farewells(self, states: Mapping[int, Vector | None]) -> None:
        """Take the n_l G_l of those who left out of the sum."""
        for client, memory in states.items():
            if memory is None:
                self.orphans += self.sizes[client]
            else:
                self.latest.total -= self.units[client] * memory
