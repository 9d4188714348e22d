"""FedLaAvg with the latest updates at the clients (Yan et al. 2020, Algorithm 2, as printed).

A client keeps its u_i of its last accepted round and uploads u_i^new - u_i^old. The rule is
clients/rules/uploads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies import Replies, Rule, Task, Vector
from strategies.fedlaavg import FedLaAvg


class FedLaAvgClientMemory(FedLaAvg):
    """FedLaAvg whose clients keep their u_i; of `latest`, the server keeps the sum alone."""

    rule = Rule("difference-upload", scalars=("normalize",), remembers=True, sends="vector")
    saved = ("orphans",)
    late_replies = "drop"  # the client then drops its u_i, too

    def setup(self) -> None:
        """Start as if every client had sent 0 before the first round."""
        super().setup()
        # Clients whose u_i nobody can take out of the sum any more: they left without an answer, or lost
        # their memory and count as new ones. N counts them like departed clients that stay in the objective.
        self.orphans = 0

    def task(self, client: int) -> Task | None:
        """Return u_i / delta_i; the client divides by its steps."""
        E = float(self.options.local_steps) if self.options.normalize else 1.0
        factor = (self.per_delta(np.array([client]), self.learning_rate) * E).astype(self.layout.dtype)
        return replace(super().task(client) or Task(), arrays=(factor,))

    def update(self, replies: Replies) -> None:
        """Algorithm 2, line 9; clients upload u_i^new - u_i^old."""
        self.latest.total += replies.ordered_sum(np.ones(len(replies)))
        contributed = self.roster.accepted[replies.clients] > 0
        self.orphans += int((replies.resync & contributed).sum())
        self.move()

    def farewells(self, states: Mapping[int, Vector | None]) -> None:
        """Take the u_l of those who left out of the sum."""
        for memory in states.values():
            if memory is None:
                self.orphans += 1
            else:
                self.latest.total -= memory
