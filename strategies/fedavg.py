"""FedAvg: the weighted mean of the local models.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.core.options import Options, choice, positive
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy


def mean_coefficients(num_examples: NDArray[np.int64], weights: str) -> NDArray[np.float64]:
    """n_k / sum_S n_k, or 1 / |S| (MimiC eq. 4), over the clients S that replied. Shape (K,)."""
    n: NDArray[np.float64] = num_examples.astype(np.float64) if weights == "n" else np.ones(len(num_examples))
    return n / float(n.sum())


class FedAvg(FlexibleStrategy):
    """w += eta_g sum_S n_k delta_k / sum_S n_k, incomplete work taken as it is."""

    suits = "comparison, and clients that take part and finish alike"
    options: FedAvgOptions

    def update(self, replies: Replies) -> None:
        """Move the global weights by the mean update of those who replied."""
        mean = replies.weighted_sum(mean_coefficients(replies.num_examples, self.options.weights))
        self.weights += self.options.server_rate * mean


@dataclass(frozen=True, kw_only=True)
class FedAvgOptions(Options):
    """Options of FedAvg.

    Attributes
    ----------
    weights
        `n` weights clients by their examples, `uniform` all alike.
    server_rate
        eta_g, by which the mean update is multiplied.
    """

    weights: str = choice("n", "uniform")
    server_rate: float = positive(1.0)
