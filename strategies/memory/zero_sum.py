"""One vector for each client, all of which sum to zero: the corrections of MimiC, FedGATE and VRL-SGD.

The optimum is not shifted as long as the vectors of all members sum to zero. A client that leaves the
objective therefore passes its vector on to the others in equal parts: without that, theirs would sum to minus
its vector forever, a bias towards the client that left.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strategies.core.layers import Vector
from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Clients
from strategies.core.state import Stateful
from strategies.memory.table import ALL, ClientTable, TableOptions


class ZeroSumTable(Stateful):
    """A table whose vectors sum to zero over all members with data, whoever arrives and departs.

    What departed clients passed on is one vector H, added to every row when it is read: a departure costs M
    numbers, not N x M.
    """

    saved = ("table", "handed_over")

    def __init__(self, layout: Layout, options: TableOptions) -> None:
        self.table = ClientTable(layout, options)  # the vectors less H
        self.handed_over: Vector = np.zeros(layout.size)  # H

    @property
    def is_zero(self) -> bool:
        """Whether all vectors still are zero."""
        return not len(self.table) and not self.handed_over.any()

    def read(self, clients: Clients, columns: slice = ALL) -> Vector:
        """Vectors of some members, shape (K, columns)."""
        vectors: Vector = self.table.read(clients, columns) + self.handed_over[columns]
        return vectors

    def blocks(self, replies: Replies) -> Iterator[tuple[slice, Vector, Vector]]:
        shifted = bool(self.handed_over.any())
        for columns, deltas, vectors in self.table.blocks(replies):
            if shifted:
                vectors += self.handed_over[columns]
            yield columns, deltas, vectors
            if shifted:
                vectors -= self.handed_over[columns]

    def change(self, arrived: Clients, left: Clients, remaining: int) -> None:
        """Pass on the vectors of those who left, and start new members with zeros: both keep the sum.

        `remaining`: how many members there are besides those who arrived.
        """
        total = np.zeros_like(self.handed_over)
        for client in left.tolist():
            total += self.table.drop(client) + self.handed_over
        self.hand_over(total, arrived, remaining)

    def hand_over(self, vector: Vector, arrived: Clients, remaining: int) -> None:
        """Pass a vector, shape (M,), on to the `remaining` members; without any, all vectors are zero.

        Those who arrived get nothing of it.
        """
        self.handed_over = self.handed_over + vector / remaining if remaining else np.zeros_like(vector)
        if self.handed_over.any():
            self.table.write(arrived, np.broadcast_to(-self.handed_over, (len(arrived), len(vector))))
        else:
            for client in arrived.tolist():
                self.table.drop(client)
