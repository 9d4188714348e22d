"""FedAvg: the weighted mean of the local models.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1.
In event time a late reply counts like any other of the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class FedAvgOptions(ServerRateOptions):
    """Options of FedAvg.

    Attributes
    ----------
    weights
        `n` weights clients by their examples, `uniform` all alike.
    """

    weights: ClientWeights = "n"
