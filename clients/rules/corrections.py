"""Methods at the client that add a correction to every gradient."""

from __future__ import annotations

from clients.rules.base import SGD, Correction
from clients.rules.vectors import Rate, Vector


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def correction(self) -> Correction:
        return Correction(strength=float(self.config.own["mu"]))


class Corrected(SGD):
    """y -= eta (g(y) + d) with a direction d, shape (..., M), that the server sends to each client.

    SCAFFOLD has d = c - c_i, FedGATE and VRL-SGD have d = -delta_i.
    """

    def correction(self) -> Correction:
        return Correction(direction=self.arrays[0] if self.arrays else None)  # none is sent while it is zero


class HeavyBall(SGD):
    """GHBM: y -= eta (g(y) + d + strength (y - w)), with a direction d and a strength from the server.

    The strength is negative, away from the model that the momentum is measured from, or 0.
    """

    def correction(self) -> Correction:
        return Correction(float(self.config.own["strength"]), self.arrays[0] if self.arrays else None)


class Dynamic(SGD):
    """FedDyn: y -= eta (g(y) - g_k + alpha (y - w)), then g_k := g_k - alpha (y - w).

    Acar et al. 2021, Algorithm 1. State: g_k, shape (..., M); zeros at a client's first participation.
    """

    vectors = ("gradient",)

    def correction(self) -> Correction:
        return Correction(self._alpha, -self.state["gradient"] if self.state else None)

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        change = self.weights - y
        change *= self._alpha
        if self.state:
            change += self.state["gradient"]
        return [], {"gradient": change}

    @property
    def _alpha(self) -> float:
        return float(self.config.own["strength"])
