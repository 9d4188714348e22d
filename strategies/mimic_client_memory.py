"""MimiC with the corrections at the clients (Sun et al. 2024, "Practical Implementations").

A client keeps its ghat_i of its last accepted round and uploads ghat_i + c_i; the server sees sums only, as
secure aggregation needs it. The rule is clients/rules/corrected_upload.py.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.contract import Rule
from strategies.core.instructions import Task
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.at_clients import CorrectionRing
from strategies.mimic import MimiC


class MimiCClientMemory(MimiC):
    """MimiC whose clients keep what their c_i is made of; the server keeps v_t of the rounds in use."""

    rule = Rule("corrected-upload", scalars=("per-step",), remembers=True, sends="vector")
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "ring", "started")

    def setup(self) -> None:
        """Start with c_i = 0."""
        self.ring = CorrectionRing(self.layout, self.options, self.roster)
        self.started = False

    def shared_task(self) -> Task:
        """Tell clients what ghat_i is: a mean gradient, or the whole update."""
        return Task(scalars={"per-step": self.options.units == "gradient"})

    def task(self, client: int) -> Task | None:
        """Return b_i, from which the client makes c_i."""
        b = self.ring.outgoing(client)
        return None if b is None else Task(arrays=(b,))

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 8 and 9; lines 6 and 10 are the clients'."""
        v = self.ring.mean(replies)
        self.weights -= self.server_rate(replies) * v
        self.ring.close(replies, self.round, v)
        self.started = True

    def on_arrival(self, client: int) -> None:
        """Start a new member with c_l = 0, which keeps the sum."""
        self.ring.arrive(client)

    def on_departure(self, client: int, keep: bool) -> None:
        """Pass c_l on to the others, at once or with the client's farewell."""
        if not keep:
            self.ring.depart(client)

    def leaves_memory(self, client: int) -> bool:
        """Whether ghat_l is known to the client alone."""
        return bool(self.roster.accepted[client])

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Pass on the c_l of a client that has sent its ghat_l."""
        roster = self.roster
        arrived = np.flatnonzero(
            roster.contributors & (roster.accepted == 0) & (roster.joined == self.round - 1)
        )
        self.ring.farewell(client, memory, arrived)
