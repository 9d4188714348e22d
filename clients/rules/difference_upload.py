"""FedLaAvg at the client, with the memory at the clients."""

from __future__ import annotations

from clients.rules.base import VectorUpload
from clients.rules.vectors import Rate, Vector


class DifferenceUpload(VectorUpload):
    """Sends u_i^new - u_i^old (Yan et al. 2020, Algorithm 2); the local steps are those of SGD.

    u_i = a (y - w), or a (y - w) / s_i with `normalize`, where the server sends the factor a as an array of
    shape (..., 1). A client without a state has u_i^old = 0.

    State: `latest`, u_i, shape (..., M).
    """

    vectors = ("latest",)

    def upload(self, y: Vector, steps: Rate, rate: Rate) -> list[Vector]:
        """Return the difference to the update of the last accepted round."""
        u = self._latest(y, steps)
        if "latest" in self.state:
            u -= self.state["latest"]
        return [u]

    def remember(self, y: Vector, steps: Rate, rate: Rate) -> dict[str, Vector]:
        """Return u_i."""
        return {"latest": self._latest(y, steps)}

    def _latest(self, y: Vector, steps: Rate) -> Vector:
        change = y - self.weights
        change *= self.arrays[0]
        return change / steps if self.config.own["normalize"] else change
