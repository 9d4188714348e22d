"""FedDyn at the client: steps on the dynamically regularised objective."""

from __future__ import annotations

from clients.rules.base import SGD, Oracle, descend
from clients.rules.vectors import Rate, Vector, approach, subtract


class Dynamic(SGD):
    """y -= eta (g(y) - g_k + alpha (y - w)), then g_k := g_k - alpha (y - w) (Acar et al. 2021, Algorithm 1).

    State: g_k, shape (..., M); zeros at a client's first participation.
    """

    vectors = ("gradient",)

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        descend(y, gradient, rate, lambda y: self._regularise(y, rate))

    def remember(self, y: Vector, steps: Rate, rate: Rate) -> dict[str, Vector]:
        """Return the new g_k."""
        change = self.weights - y
        change *= self._alpha
        if self.state:
            change += self.state["gradient"]
        return {"gradient": change}

    def _regularise(self, y: Vector, rate: Rate) -> None:
        approach(y, self.weights, rate * self._alpha)
        if self.state:
            subtract(y, -self.state["gradient"], rate)

    @property
    def _alpha(self) -> float:
        return float(self.config.own["strength"])
