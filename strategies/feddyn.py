"""FedDyn: dynamic regularisation makes the clients' optima those of the global objective.

Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", ICLR, Algorithm 1. Client k takes
steps y -= eta (g(y) - g_k + alpha (y - w)) towards the minimum of its regularised objective; then

    g_k := g_k - alpha (y_k - w),   h := h - (alpha/N) sum_S (y_k - w),   w := mean_S y_k - h / alpha.

The clients keep the g_k, and h is their mean over all N members. At the limit y_k = w, so that g_k is the
gradient of F_k at w and h = 0: the optimum, also at a constant rate and whoever takes part. Fewer local steps
are a less exact minimum, as in the paper's analysis of inexact solutions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.ground.allowed import Positive
from fedtide.ground.contract import Rule
from strategies.core import FlexibleStrategy, Options, Replies, Vector


class FedDyn(FlexibleStrategy):
    """Local objectives tilted by what each client has contributed: exact in spite of drift and absences."""

    suits = "very different data, and clients that can keep a vector"
    options: FedDynOptions
    rule = Rule("dynamic", scalars=("strength",), remembers=True)  # g_k
    saved = ("h",)

    def setup(self) -> None:
        """Start with h = g_k = 0."""
        self.h: Vector = np.zeros(self.layout.size)

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 9 to 11."""
        alpha, N = self.options.strength, self.roster.num_contributors
        total = replies.weighted_sum(np.ones(len(replies)))
        self.h = self.h - alpha / N * total
        self.weights += total / len(replies) - self.h / alpha

    def on_arrival(self, client: int) -> None:
        """h := h N / (N + 1), the mean with the new member's g_l = 0."""
        members = self.roster.num_contributors
        self.h = self.h * ((members - 1) / members)

    def on_departure(self, client: int, keep: bool) -> None:
        """h := h N / (N - 1), unless the client stays in the objective; its g_l goes with its farewell."""
        remaining = self.roster.num_contributors
        if not keep:
            self.h = self.h * ((remaining + 1) / remaining) if remaining else np.zeros_like(self.h)

    def on_farewell(self, client: int, memory: Vector | None) -> None:
        """h := h - g_l / (N - 1); if the client did not answer, its g_l stays."""
        if memory is not None and self.roster.num_contributors:
            self.h = self.h - memory / self.roster.num_contributors


@dataclass(frozen=True, kw_only=True)
class FedDynOptions(Options):
    """Options of FedDyn.

    Attributes
    ----------
    strength
        alpha, of the regularisation; the paper tries 0.001 to 0.1. A small one makes long steps: the server
        adds h / alpha.
    """

    strength: Positive = 0.1
