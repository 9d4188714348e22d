"""FedExP: a round's step is the longer, the less the clients' updates agree.

Jhunjhunwala, Wang, Joshi 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR,
Algorithm 1. With q_k the weights of those who replied, of sum 1,

    D := sum_S q_k delta_k,   f := max(1, sum_S q_k ||delta_k||^2 / (2 (||D||^2 + epsilon))),   w := w + f D.

The model is the mean of the last two w. The factor has no upper limit but that of epsilon,
f <= max(1, mean ||delta_k||^2 / (2 epsilon)): at the optimum of different clients D vanishes and the delta_k
do not. One client alone has f = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies import ClientWeights, FlexibleStrategy, NotNegative, Options, Replies, Units, Vector
from strategies.fedprox import FedProx


class FedExP(FlexibleStrategy):
    """FedAvg with a longer step where updates disagree: w += f D, f by their norms."""

    suits = "speed, where many clients with different data reply in each round"
    options: FedExPOptions
    rule = FedProx.rule
    saved = ("previous",)

    def setup(self) -> None:
        """Start with one model, which is its own mean."""
        self.previous = self.weights.copy()

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 8 to 11, for some of the M weights at a time."""
        q, D = replies.mean_coefficients(self.options.weights), np.empty(self.layout.size)
        squares = np.zeros(len(replies))  # ||delta_k||^2
        for at, delta in replies.blocks():
            D[at] = q @ delta
            squares += np.einsum("km,km->k", delta, delta)
        below = 2 * (float(D @ D) + self.epsilon())
        f = max(1.0, float(q @ squares) / below) if below else 1.0
        self.previous = self.weights.copy()
        self.weights += f * D
        self.report.measured["extrapolation"] = f

    def on_restart(self) -> None:
        """Leave the model before out of the mean."""
        self.previous = self.weights.copy()

    def evaluated(self) -> Vector:
        """Return the mean of the last two models: single ones swing about it."""
        return (self.previous + self.weights) / 2

    def epsilon(self) -> float:
        """Epsilon in units of updates."""
        in_gradients = self.options.units == "gradient"
        return self.options.epsilon * (self.learning_rate**2 if in_gradients else 1.0)


@dataclass(frozen=True, kw_only=True)
class FedExPOptions(Options):
    """Options of FedExP.

    Attributes
    ----------
    epsilon
        Added to the squared norm of the mean update. It decides: above half the usual squared norm of a
        client's update FedExP is FedAvg, with 0 it never settles where clients differ.
    units
        `gradient` multiplies epsilon by the square of the learning rate, so that it stays in proportion to
        the updates as the rate decays (the authors' code); `update` takes it as it is (the paper).
    weights
        `n` weights clients by their examples (the authors' code), `uniform` all alike.
    mu
        Strength of FedProx's proximal term in the local steps; 0: plain SGD.
    """

    epsilon: NotNegative = 1.0
    units: Units = "gradient"
    weights: ClientWeights = "n"
    mu: NotNegative = 0.0
