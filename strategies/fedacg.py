"""FedACG: clients start from where momentum is about to take the model, which keeps them from drifting apart.

Kim, Kim, Han 2024, "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR,
Algorithm 1. With q_k the weights of those who replied, of sum 1, clients start from z and do FedProx's steps

    z := w + beta m,   y := z,   y -= eta (g(y) + mu (y - z)),   delta_k := y - z,
    m := beta m + sum_S q_k delta_k,   w := w + m.

This is Nesterov's momentum, written for z: z := z + D + beta m with the new m. The strategy's weights are z,
what clients are sent; w = z - beta m is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies import ClientWeights, FlexibleStrategy, NotNegative, Options, Replies, Vector
from strategies.fedprox import FedProx
from strategies.parts.server_optimizers import Decay


class FedACG(FlexibleStrategy):
    """FedAvg with Nesterov's momentum: clients are sent w + beta m, their updates go into m."""

    suits = "speed, where few clients with different data reply in each round"
    options: FedACGOptions
    rule = FedProx.rule
    saved = ("m",)
    takes_layers = False  # w = z - beta m is evaluated, which holds only if z moves by D + beta m

    def setup(self) -> None:
        """Start with m = 0."""
        self.m: Vector = np.zeros(self.layout.size)

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 9 to 11, and line 3 of the next round."""
        D = replies.weighted_sum(replies.mean_coefficients(self.options.weights))
        self.m = self.options.beta * self.m + D
        self.weights += D + self.options.beta * self.m  # z

    def on_restart(self) -> None:
        """Forget the momentum of the model before."""
        self.setup()

    def evaluated(self) -> Vector:
        """Return w."""
        return self.weights - self.options.beta * self.m


@dataclass(frozen=True, kw_only=True)
class FedACGOptions(Options):
    """Options of FedACG.

    Attributes
    ----------
    beta
        Share of the momentum that goes on in each round.
    mu
        Strength of the proximal term about z; 0: plain SGD. The paper's term has no 1/2: its 0.001 is 0.002.
    weights
        `n` weights clients by their examples, `uniform` all alike (the authors' code).
    """

    beta: Decay = 0.85
    mu: NotNegative = 0.0
    weights: ClientWeights = "n"
