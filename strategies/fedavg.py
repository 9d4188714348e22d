"""FedAvg: the weighted mean of the local models; FedSGD: FedAvg with a single local step.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1
and section 2. In event time a late reply counts like any other of the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from strategies import ClientWeights, FlexibleStrategy, Replies, ServerRateOptions


class FedAvg(FlexibleStrategy):
    """w += eta_g sum_S n_k delta_k / sum_S n_k, incomplete work taken as it is."""

    suits = "comparison, and clients that take part and finish alike"
    options: FedAvgOptions
    late_replies = "event-time"

    def update(self, replies: Replies) -> None:
        """Move the global weights by the mean update of those who replied."""
        mean = replies.weighted_sum(replies.mean_coefficients(self.options.weights))
        self.weights += self.options.server_rate * mean


class FedSGD(FedAvg):
    """One gradient step per round, on the whole local set unless `batch=mini`; local steps are ignored."""

    suits = "comparison: what local steps gain"
    options: FedSGDOptions

    def setup(self) -> None:
        """Ask every client for a single step."""
        batch_size = 0 if self.options.batch == "full" else self.options.batch_size
        self.options = replace(self.options, local_steps=1, local_epochs=0, batch_size=batch_size)


@dataclass(frozen=True, kw_only=True)
class FedAvgOptions(ServerRateOptions):
    """Options of FedAvg.

    Attributes
    ----------
    weights
        `n` weights clients by their examples, `uniform` all alike.
    """

    weights: ClientWeights = "n"


@dataclass(frozen=True, kw_only=True)
class FedSGDOptions(FedAvgOptions):
    """Options of FedSGD.

    Attributes
    ----------
    batch
        `full` takes the gradient on the client's whole set, `mini` on one batch of `batch_size`.
    """

    batch: Literal["full", "mini"] = "full"
