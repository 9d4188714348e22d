"""FedProx at the client."""

from __future__ import annotations

from torch import Tensor

from clients.rules.base import SGD, Oracle, Rate, descend


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        share = rate * float(self.config.own["mu"])
        descend(y, gradient, rate, lambda y: y.lerp_(self.weights, share))
