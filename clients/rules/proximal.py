"""FedProx at the client."""

from __future__ import annotations

from clients.rules.base import SGD, Oracle, descend
from clients.rules.vectors import Rate, Vector, approach


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        share = rate * float(self.config.own["mu"])
        descend(y, gradient, rate, lambda y: approach(y, self.weights, share))
