"""Where the clients keep the vectors: what is left to do for the server.

A client remembers what it did in its last accepted round (see clients/memory/handshake.py) and uploads what
follows from that, one vector of M numbers and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.core.options import choose
from strategies.core.replies import Replies
from strategies.core.state import Stateful
from strategies.memory.table import TableOptions


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(TableOptions):
    """Options of methods whose memory can be at the server or at the clients.

    Attributes
    ----------
    memory
        `server` keeps a vector for each client, any Flower client will do. `client` has the clients of this
        project keep them: the server needs hardly any memory, and the sum of the uploads is all that it uses.
        Who leaves the objective is asked for its vector, once; if it does not answer, its part stays.
    """

    memory: str = "server"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("memory", self.memory, ("server", "client"))


class LatestSum(Stateful):
    """The sum of vectors of which each client knows its own: FedLaAvg's u_i, uploaded as differences.

    Attributes
    ----------
    total
        sum_i u_i in float64, shape (M,).
    orphans
        How many parts of it nobody can take back any more: of clients that left without an answer, or that
        lost their memory and count as new ones. N counts them like departed clients that stay in the
        objective.
    """

    saved = ("total", "orphans")

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size)
        self.orphans = 0

    def add(self, replies: Replies, contributed: NDArray[np.bool_]) -> None:
        """total += sum_i (u_i^new - u_i^old); `contributed` says whose u_i^old is in it, shape (K,)."""
        self.total += replies.vectors.sum(axis=0, dtype=np.float64)
        self.orphans += int((replies.resync & contributed).sum())

    def take_back(self, vector: NDArray[np.float64] | None) -> None:
        """Take out the u_i of a client that left; None: it is not known."""
        if vector is None:
            self.orphans += 1
        else:
            self.total -= vector
