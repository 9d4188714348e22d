"""FedDyn at the client: steps on the dynamically regularised objective."""

from __future__ import annotations

from torch import Tensor

from clients.rules.base import SGD, Oracle, Rate, descend, subtract


class Dynamic(SGD):
    """y -= eta (g(y) - g_k + alpha (y - w)), then g_k := g_k - alpha (y - w) (Acar et al. 2021, Algorithm 1).

    State: g_k, shape (..., M); zeros at a client's first participation.
    """

    vectors = ("gradient",)

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        descend(y, gradient, rate, lambda y: self._regularise(y, rate))

    def remember(self, y: Tensor, steps: Rate, rate: Rate) -> dict[str, Tensor]:
        """Return the new g_k."""
        change = (self.weights - y).mul_(self._alpha)
        return {"gradient": change.add_(self.state["gradient"]) if self.state else change}

    def _regularise(self, y: Tensor, rate: Rate) -> None:
        y.lerp_(self.weights, rate * self._alpha)
        if self.state:
            subtract(y, -self.state["gradient"], rate)

    @property
    def _alpha(self) -> float:
        return float(self.config.own["strength"])
