"""FedLaAvg: clients that were absent longest train, and the latest update of every client counts.

Yan et al. 2020, "Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client
Availability", Algorithm 2. In round t, with C^t the available clients and A_i the last round in which client
i was asked,

    B^t := the K clients of C^t with the lowest A_i,     A_i := t for i in B^t,
    u := u + (1/N) sum_{i in B^t} (u_i^new - u_i^old),   x := x + u.

The server keeps each u_i and their sum, which it divides by the current N; with `memory=client` the clients
keep them and upload the differences, see strategies/fedlaavg_client_memory.py. A late reply is the u_i^new
of the round in which it arrives; with memory at the clients it is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    Clients,
    EmptyRound,
    FlexibleStrategy,
    LateReplies,
    LongestAbsent,
    MemoryOptions,
    Replies,
    Selection,
    SettingsError,
    SummedTable,
    Task,
    Units,
)


class FedLaAvg(FlexibleStrategy):
    """Mean of all clients' latest updates; those train who were absent longest: x += (1/N) sum_i u_i."""

    suits = "clients that come in turns, such as day and night, and few asked in a round"
    options: FedLaAvgOptions
    saved: ClassVar[tuple[str, ...]] = ("latest",)
    late_replies: ClassVar[LateReplies] = "take"
    orphans: int = 0  # clients whose u_i is in the sum, and who are not in the roster

    def setup(self) -> None:
        """Start as if every client had sent 0 before the first round."""
        self.latest = SummedTable(self.layout, self.options)  # u_i

    def own_selection(self) -> Selection:
        """Algorithm 2, lines 6 and 7."""
        return LongestAbsent(self.roster, self.options.seed)

    def task(self, client: int) -> Task | None:
        """Return the client's own rate with `loss`: the gradient of N p_i F_i is N p_i times that of F_i."""
        if self.options.weights != "loss":
            return None
        (factor,) = self.roster.relative_share(np.array([client])).tolist()
        return Task(learning_rate=self.learning_rate * factor)

    def update(self, replies: Replies) -> None:
        """Algorithm 2, lines 8 and 9; the table keeps the sum of all u_i."""
        work = replies.work_factors(self.options.normalize)
        self.latest.replace(replies, self.per_delta(replies.clients, replies.learning_rate) * work)
        self.move()

    def empty_round(self) -> None:
        """Move by the mean of the old updates, with `move`."""
        if self.options.empty == "move":
            self.move()

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Take the updates of those who left out of the sum."""
        for client in left.tolist():
            self.latest.drop(client)

    def move(self) -> None:
        """Apply x += (1/N) sum_i u_i, or x -= eta_t (1/N) sum_i u_i in units of gradients."""
        N = self.roster.num_contributors + self.orphans
        rate = -self.learning_rate if self.options.units == "gradient" else 1.0
        self.weights += rate / max(1, N) * self.latest.total

    def per_delta(self, clients: Clients, learning_rate: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """u_i / delta_i of complete work at this rate, shape (K,)."""
        factors = self.roster.relative_share(clients, "n" if self.options.weights == "agg" else "uniform")
        return factors / -learning_rate if self.options.units == "gradient" else factors


@dataclass(frozen=True, kw_only=True)
class FedLaAvgOptions(MemoryOptions):
    """Options of FedLaAvg; K is `clients_per_round`.

    Attributes
    ----------
    units
        `gradient` keeps sums of gradients and applies them with the current rate (the authors' code),
        `update` keeps changes of the weights (Algorithm 2); the same where the rate is constant.
    weights
        How a client counts with its share p_i: `agg` multiplies its update by N p_i, `loss` its local
        objective and so its learning rate (the paper), `none` counts all clients alike.
    normalize
        Scale incomplete work by E / s_i; the paper has no incomplete clients, `false` takes it as it is.
    empty
        In a round without replies: `skip` rests, `move` applies the old updates once more (the paper).
    """

    units: Units = "gradient"
    weights: Literal["agg", "loss", "none"] = "agg"
    normalize: bool = True
    empty: EmptyRound = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory == "client" and self.normalize and self.local_epochs:
            raise SettingsError(
                "memory is 'client' with local-epochs: the work of clients cannot be scaled by E / s, as E "
                "differs by client; set normalize=false, or local-steps instead of local-epochs"
            )
