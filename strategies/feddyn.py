"""FedDyn: dynamic regularisation makes the clients' optima those of the global objective.

Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", ICLR, Algorithm 1. Client k takes
steps y -= eta (g(y) - g_k + alpha (y - w)) towards the minimum of its regularised objective; then

    g_k := g_k - alpha (y_k - w),   h := h - (alpha/N) sum_S (y_k - w),   w := mean_S y_k - h / alpha.

The clients keep the g_k, and h is their mean over all N members; the server keeps the sum, N h. At the limit
y_k = w, so that g_k is the gradient of F_k at w and h = 0: the optimum, also at a constant rate and whoever
takes part. Fewer local steps are a less exact minimum, as in the paper's analysis of inexact solutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies import FlexibleStrategy, Options, Positive, Replies, Rule, Vector


class FedDyn(FlexibleStrategy):
    """Local objectives tilted by what each client has contributed: exact in spite of drift and absences."""

    suits = "very different data, and clients that can keep a vector"
    options: FedDynOptions
    rule = Rule("dynamic", scalars=("strength",), remembers=True)  # g_k
    saved = ("total",)

    def setup(self) -> None:
        """Start with g_k = 0."""
        self.total: Vector = np.zeros(self.layout.size)  # sum of all members' g_k, N h

    @property
    def h(self) -> Vector:
        """The mean of all members' g_k, shape (M,)."""
        mean: Vector = self.total / max(1, self.roster.num_contributors)
        return mean

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 9 to 11."""
        alpha = self.options.strength
        change = replies.weighted_sum(np.ones(len(replies)))
        self.total -= alpha * change
        self.weights += change / len(replies) - self.h / alpha

    def farewells(self, states: Mapping[int, Vector | None]) -> None:
        """Take the g_l of those who left out of the sum; that of one who did not answer stays.

        Where nobody remains who has contributed, all g_k are 0, and so is the sum.
        """
        for memory in states.values():
            if memory is not None:
                self.total -= memory
        if not self.roster.accepted[self.roster.contributors].any():
            self.total[:] = 0


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
