"""MimiC: each client's update is corrected so that it mimics the mean over all clients.

Sun et al. 2024, "MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates", IEEE
Transactions on Mobile Computing, Algorithm 1. With ghat_i the mean gradient of a client's local steps,

    v_t := (1/|S_t|) sum_{i in S_t} (ghat_i + c_i),   w := w - eta_t v_t,   c_i := v_t - ghat_i  for i in S_t.

The corrections of all members sum to 0 after every round, whoever took part: the optimum is not shifted. They
are kept by the server, or with `memory=client` by the clients, see strategies/mimic_client_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from strategies import (
    Clients,
    FlexibleStrategy,
    MemoryOptions,
    Positive,
    Range,
    Replies,
    Units,
    Vector,
    ZeroSumTable,
)


class MimiC(FlexibleStrategy):
    """Mean of updates, each corrected by how it differed from the mean when its client was last there."""

    suits = "clients that are away for long, where their old updates would mislead"
    options: MimiCOptions
    saved: ClassVar[tuple[str, ...]] = ("corrections", "started")

    def setup(self) -> None:
        """Start with c_i = 0."""
        self.corrections = ZeroSumTable(self.layout, self.options)  # c_i
        self.started = False

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 5 to 10, for some of the M weights at a time."""
        per_delta = self.gradient_per_delta(replies)[:, None]
        share, v = replies.mean_coefficients("uniform"), np.empty(self.layout.size)
        for at, ghat, c in self.corrections.blocks(replies):
            ghat *= per_delta  # deltas until here
            v[at] = share @ ghat + share @ c  # lines 6 and 8
            np.subtract(v[at], ghat, out=c)  # line 10
        self.weights -= self.server_rate(replies) * v  # line 9
        self.started = True

    def select(self, available: Clients) -> Clients:
        """Choose by the seed, after the warm-up."""
        warming_up = self.options.warm_up and not self.started and not self.options.round_ends
        return available if warming_up else super().select(available)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Pass the c_l of those who left on to the others; new members start with 0: the sum stays 0."""
        self.corrections.change(arrived, left, self.roster.num_contributors - len(arrived))

    def gradient_per_delta(self, replies: Replies) -> Vector:
        """ghat_i / delta_i, shape (K,): -1 / (eta s_i) by the client's own steps; -1 in units of updates."""
        if self.options.units == "update":
            return -np.ones(len(replies))
        return -1 / (self.learning_rate * replies.steps)

    def server_rate(self, replies: Replies) -> float:
        """eta_t."""
        if self.options.units == "update":
            return 1.0
        if self.options.rate == "paper":
            return self.options.global_rate * self.options.global_decay ** (self.round - 1)
        return self.learning_rate * float(replies.planned.mean())  # E, the mean where it differs by client


@dataclass(frozen=True, kw_only=True)
class MimiCOptions(MemoryOptions):
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
        paper assumes that all clients take part in the first round. Not in event time, where that is a limit.
    """

    units: Units = "gradient"
    rate: Literal["code", "paper"] = "code"
    global_rate: Positive = 0.01
    global_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    warm_up: bool = False
