"""FedGATE: local gradients are tracked towards the global one.

Haddadpour et al. 2021, "Federated Learning with Compression: Unified Analysis and Sharp Guarantees", FedGATE
(FedCOMGATE without compression). A client does s_j steps y -= eta (g(y) - delta_j); with D_j the mean step,
D_j = (w - y) / (eta s_j), and D their mean over those who replied,

    w := w - eta gamma E D,   delta_j := delta_j + D_j - D.

The delta_j of all members sum to 0. They are kept by the server, which sends -delta_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies import (
    CORRECTED,
    Clients,
    FlexibleStrategy,
    Replies,
    ServerRateOptions,
    TableOptions,
    Task,
    ZeroSumTable,
)


class GradientTracking(FlexibleStrategy):
    """Base of FedGATE and VRL-SGD: clients step along g(y) - delta_j, and the delta_j of all sum to 0."""

    options: TableOptions
    rule = CORRECTED
    saved = ("tracked",)
    needs_steps = True

    def setup(self) -> None:
        """Start with delta_j = 0."""
        self.tracked = ZeroSumTable(self.layout, self.options)  # delta_j

    def task(self, client: int) -> Task | None:
        """Return -delta_j; nothing while all are zero."""
        if self.tracked.is_zero:
            return None
        (delta,) = self.tracked.read(np.array([client]))
        return Task(arrays=((-delta).astype(self.layout.dtype),))

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Pass the delta_l of those who left on to the others; new members start with 0: the sum stays 0."""
        self.tracked.change(arrived, left, self.roster.num_contributors - len(arrived))


class FedGATE(GradientTracking):
    """Local steps y -= eta (g(y) - delta_j), delta_j the client's part of the disagreement."""

    suits = "very different data and many local steps, with a server rate to tune"
    options: FedGATEOptions

    def update(self, replies: Replies) -> None:
        """Move along the mean step and track each client's difference to it."""
        steps = replies.steps if self.options.mode == "per-step" else replies.planned
        per_delta = -1 / (self.learning_rate * steps)[:, None]
        share, mean = replies.mean_coefficients("uniform"), np.empty(self.layout.size)  # D
        for at, D_j, delta_j in self.tracked.blocks(replies):
            D_j *= per_delta  # changes of the weights until here
            mean[at] = share @ D_j
            D_j -= mean[at]
            delta_j += D_j
        planned = float(replies.planned.mean())  # E, the mean where it differs by client
        self.weights -= self.learning_rate * self.options.server_rate * planned * mean


@dataclass(frozen=True, kw_only=True)
class FedGATEOptions(ServerRateOptions, TableOptions):
    """Options of FedGATE; gamma is `server_rate`.

    Attributes
    ----------
    mode
        `per-step` averages mean steps, so that a client that does more does not weigh more; `literal`
        averages whole updates and divides by the planned steps, as the paper has it for complete clients.
    """

    mode: Literal["per-step", "literal"] = "per-step"
