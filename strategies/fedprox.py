"""FedProx: FedAvg with clients that are held back from drifting away.

Li et al. 2018, "Federated Optimization in Heterogeneous Networks", Algorithm 2. A client minimises
F_k(y) + mu/2 ||y - w||^2; incomplete work is an inexact solution and counts as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategies.core.interfaces import Task
from strategies.fedavg import FedAvg, FedAvgOptions


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx.

    Attributes
    ----------
    mu
        Strength of the proximal term; FedLaAvg 6.1.2 quotes 1 for MNIST and 0.01 for Sentiment140.
    """

    mu: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu is {self.mu}; it must be finite and not negative")


class FedProx(FedAvg):
    """FedAvg with the local step y -= eta (g(y) + mu (y - w))."""

    options_type = FedProxOptions
    options: FedProxOptions
    rule = "proximal"

    def shared_task(self) -> Task:
        """Return mu."""
        return Task(config=(("mu", self.options.mu),))
