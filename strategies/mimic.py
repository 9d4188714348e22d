"""MimiC: each client's update is corrected so that it mimics the mean over all clients.

Sun et al. 2024, "MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates", IEEE
Transactions on Mobile Computing, Algorithm 1. With ghat_i the mean gradient of a client's local steps,

    v_t := (1/|S_t|) sum_{i in S_t} (ghat_i + c_i),   w := w - eta_t v_t,   c_i := v_t - ghat_i  for i in S_t.

The corrections of all members sum to 0 after every round, whoever took part: the optimum is not shifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.base import FlexibleStrategy
from strategies.options import choose, positive
from strategies.replies import Replies
from strategies.table import ClientTable, TableOptions

Vectors = NDArray[np.float64]


def corrected_sum(updates: Vectors, corrections: Vectors) -> Vectors:
    """sum_i v_i with v_i = ghat_i + c_i (Algorithm 1, line 6), from arrays of shape (K, M)."""
    total: Vectors = updates.sum(axis=0) + corrections.sum(axis=0)
    return total


def new_corrections(mean: Vectors, updates: Vectors) -> Vectors:
    """c_i := v_t - ghat_i (Algorithm 1, line 10), shape (K, M)."""
    return mean - updates


@dataclass(frozen=True, kw_only=True)
class MimiCOptions(TableOptions):
    """Options of MimiC.

    Attributes
    ----------
    units
        `gradient` keeps corrections of mean gradients and applies them with the current rate (the paper),
        `update` those of rate times sum of gradients, at the old rate (the authors' code): incomplete work
        is taken as it is, the server's step is 1, and `rate` has no meaning.
    rate
        eta_t, the server's: `code` takes E times the local rate, so that a round goes as far as in FedAvg;
        `paper` has a rate of its own, with which a round goes as far as one local step.
    global_rate, global_decay
        eta_t = global_rate * global_decay^(t-1) with `paper`. Table II: 0.01 with 0.95 or 0.99.
    warm_up
        Ask every client that is available, not only `clients_per_round`, until the first have replied: the
        paper assumes that all clients take part in the first round.
    """

    units: str = "gradient"
    rate: str = "code"
    global_rate: float = 0.01
    global_decay: float = 1.0
    warm_up: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("units", self.units, ("gradient", "update"))
        choose("rate", self.rate, ("code", "paper"))
        positive("global-rate", self.global_rate)
        if not 0 < self.global_decay <= 1:
            raise ValueError(f"global-decay is {self.global_decay}; it must be in (0, 1]")


class MimiC(FlexibleStrategy):
    """Mean of updates, each corrected by how it differed from the mean when its client was last there."""

    options_type = MimiCOptions
    options: MimiCOptions
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "table", "handed_over", "started")

    def setup(self) -> None:
        """Start with c_i = 0."""
        self.table = ClientTable(self.layout, self.options)
        self.handed_over = np.zeros(self.layout.size)  # to every member; c_i = row + handed_over
        self.started = False

    def corrections(self, clients: NDArray[np.intp]) -> Vectors:
        """c_i of some members, shape (K, M)."""
        return self.table.read(clients) + self.handed_over

    def select(self, available: NDArray[np.intp]) -> NDArray[np.intp]:
        """Choose by the seed, after the warm-up."""
        return super().select(available) if self.started or not self.options.warm_up else available

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 5 to 10; ghat_i is made of delta_i twice instead of being kept."""
        per_delta = self._per_delta(replies)[:, None]  # ghat_i / delta_i
        v = np.zeros(self.layout.size)
        for part, deltas in replies.blocks():
            v += corrected_sum(per_delta[part] * deltas, self.corrections(replies.clients[part]))
        v /= len(replies)
        for part, deltas in replies.blocks():
            c = new_corrections(v, per_delta[part] * deltas)
            self.table.write(replies.clients[part], c - self.handed_over)
        self.weights -= self._server_rate(replies) * v
        self.started = True

    def on_arrival(self, client: int) -> None:
        """Start a new member with c_l = 0, which keeps the sum."""
        if self.handed_over.any():
            self.table.write(np.array([client]), -self.handed_over[None])

    def on_departure(self, client: int, keep: bool) -> None:
        """Hand c_l over in equal parts, or the others' corrections would sum to -c_l for ever: a bias."""
        if keep:  # that bias is meant, the client stays in the objective
            return
        (c,) = self.corrections(np.array([client]))
        self.table.drop(client)
        remaining = self.roster.num_contributors
        self.handed_over = self.handed_over + c / remaining if remaining else np.zeros_like(c)

    def _per_delta(self, replies: Replies) -> Vectors:
        """ghat_i / delta_i, shape (K,): -1 / (eta s_i) by the client's own steps; -1 in units of updates."""
        if self.options.units == "update":
            return -np.ones(len(replies))
        return -1 / (self.learning_rate * replies.steps)

    def _server_rate(self, replies: Replies) -> float:
        """eta_t."""
        if self.options.units == "update":
            return 1.0
        if self.options.rate == "paper":
            return self.options.global_rate * self.options.global_decay ** (self.round - 1)
        return self.learning_rate * float(replies.planned.mean())  # E, the mean where it differs by client
