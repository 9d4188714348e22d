"""FOCUS at the client: steps along g(y) - G_k, and what is sent after them.

Ying et al. 2025, "Exact and Linear Convergence for Federated Learning under Arbitrary Client Participation is
Attainable", Algorithm 1. Where the server keeps G_k and takes the mean gradient, the rule is `Corrected`.
"""

from __future__ import annotations

from clients.rules.base import Correction, Oracle
from clients.rules.corrections import Corrected
from clients.rules.uploads import DifferenceUpload
from clients.rules.vectors import Rate, Vector, copy_of, subtract


class LastGradient(Corrected):
    """Steps y -= eta (g(y) + d) as `Corrected`; sends w - eta g(y) with the g(y) of the last of them.

    The step that follows this last gradient is without effect. State of a round: `local`, y, shape (..., M).
    """

    def setup(self) -> None:
        self.state["local"] = copy_of(self.weights)

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        """Do one local step in the state, and let `y` be what is sent if it is the last."""
        local, direction = self.state["local"], self.correction().direction
        g = gradient(local)
        y[...] = self.weights
        subtract(y, g, rate)
        subtract(local, g, rate)
        if direction is not None:
            subtract(local, direction, rate)

    def position(self, y: Vector) -> Vector:
        return self.state["local"]  # which is not what is sent

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        return [], {}


class KeptGradient(DifferenceUpload, Corrected):
    """Steps y -= eta (g(y) - G_k); u_k = n_k G_k with the mean gradient of the steps, see `DifferenceUpload`.

    The server sends n_k and the one of its last accepted round, arrays of shape (..., 1); it may send 1.

    State: `latest`, n_k G_k, shape (..., M).
    """

    def correction(self) -> Correction:
        known = "latest" in self.state
        return Correction(direction=-self.state["latest"] / self.arrays[1] if known else None)

    def upload(self, y: Vector, steps: Rate, rate: Rate) -> Vector:
        return self.arrays[0] * self.gradient(y, steps, rate)

    def gradient(self, y: Vector, steps: Rate, rate: Rate) -> Vector:
        """Return the new G_k, the mean of the steps' gradients, each of which was less the old G_k."""
        mean = (self.weights - y) / (rate * steps)
        direction = self.correction().direction
        return mean if direction is None else mean - direction


class KeptLastGradient(KeptGradient, LastGradient):
    """As `KeptGradient`, with the last gradient of the steps."""

    def gradient(self, y: Vector, steps: Rate, rate: Rate) -> Vector:
        return (self.weights - y) / rate
