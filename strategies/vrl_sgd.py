"""VRL-SGD: variance-reduced local SGD.

Liang et al. 2019, "Variance Reduced Local SGD with Lower Communication Complexity", Algorithm 1. A worker
does k steps x_i -= gamma (g(x_i) - D_i); at the synchronisation with mean xbar

    D_i := D_i + (xbar - x_i) / (k gamma),   x_i := xbar.

With complete workers it is FedGATE with gamma = 1. An incomplete worker divides by its own steps, and then
the D_i no longer sum to 0: FedGATE's per-step mode is the better choice there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies import Replies, TableOptions, Task
from strategies.fedgate import GradientTracking


class VRLSGD(GradientTracking):
    """Uniform mean of the local models, with local steps corrected by the differences at the last one."""

    suits = "workers that always finish; incomplete ones can make it diverge"
    options: VRLSGDOptions

    def task(self, client: int) -> Task | None:
        """Return -D_i; in the first round with `warm_up`, a single step."""
        if self.options.warm_up and self.round <= 1:
            return Task(local_steps=1)
        return super().task(client)

    def update(self, replies: Replies) -> None:
        """Move to the mean model and update the D_i of those who replied."""
        per_delta = -1 / (self.learning_rate * replies.steps)[:, None]
        share, mean = replies.mean_coefficients("uniform"), np.empty(self.layout.size)  # xbar - x
        for at, dx_i, D_i in self.tracked.blocks(replies):
            mean[at] = share @ dx_i
            dx_i -= mean[at]  # x_i - xbar
            dx_i *= per_delta
            D_i += dx_i
        self.weights += mean


@dataclass(frozen=True, kw_only=True)
class VRLSGDOptions(TableOptions):
    """Options of VRL-SGD.

    Attributes
    ----------
    warm_up
        VRL-SGD-W: a single step in the first round, so that the D_i start as differences of gradients.
    """

    warm_up: bool = False
