"""FedLaAvg with the latest updates at the clients (Yan et al. 2020, Algorithm 2, as printed).

A client keeps its u_i of its last accepted round and uploads u_i^new - u_i^old. The rule is
clients/rules/difference_upload.py.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.contract import Rule
from strategies.core.instructions import Task
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.fedlaavg import FedLaAvg
from strategies.memory.at_clients import LatestSum


class FedLaAvgClientMemory(FedLaAvg):
    """FedLaAvg whose clients keep their u_i; the server keeps the sum."""

    rule = Rule("difference-upload", scalars=("normalize",), remembers=True, sends="vector")
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "sum")
    late_replies = "drop"  # the client then drops its u_i, too

    def setup(self) -> None:
        """Start as if every client had sent 0 before the first round."""
        self.sum = LatestSum(self.layout.size)

    def shared_task(self) -> Task:
        """Tell clients whether they scale incomplete work."""
        return Task(scalars={"normalize": self.options.normalize})

    def task(self, client: int) -> Task | None:
        """Return u_i / delta_i; the client divides by its steps."""
        E = float(self.options.local_steps) if self.options.normalize else 1.0
        factor = (self.factors(np.array([client]), self.learning_rate) * E).astype(self.layout.dtype)
        rate = super().task(client)
        return Task(arrays=(factor,), learning_rate=None if rate is None else rate.learning_rate)

    def update(self, replies: Replies) -> None:
        """Algorithm 2, line 9."""
        self.sum.add(replies, self.roster.accepted[replies.clients] > 0)
        self.move()

    def sum_and_count(self) -> tuple[NDArray[np.float64], int]:
        """Return the sum of all u_i, shape (M,), and the number of clients in it."""
        return self.sum.total, self.roster.num_contributors + self.sum.orphans

    def on_departure(self, client: int, keep: bool) -> None:
        """Nothing yet: u_l is asked for in the client's farewell."""

    def leaves_memory(self, client: int) -> bool:
        """Whether u_l is known to the client alone."""
        return bool(self.roster.accepted[client])

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Take the u_l of a client that leaves the objective out of the sum."""
        self.sum.remove(memory)
