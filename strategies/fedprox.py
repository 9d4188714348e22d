"""FedProx: FedAvg with clients that are held back from drifting away.

Li et al. 2018, "Federated Optimization in Heterogeneous Networks", Algorithm 2. A client minimises
F_k(y) + mu/2 ||y - w||^2; incomplete work is an inexact solution and counts as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies import NotNegative, Rule
from strategies.fedavg import FedAvg, FedAvgOptions


class FedProx(FedAvg):
    """FedAvg with the local step y -= eta (g(y) + mu (y - w))."""

    suits = "very different data, where local steps drift away"
    options: FedProxOptions
    rule = Rule("proximal", scalars=("mu",))


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx.

    Attributes
    ----------
    mu
        Strength of the proximal term; FedLaAvg 6.1.2 quotes 1 for MNIST and 0.01 for Sentiment140.
    """

    mu: NotNegative = 1.0
