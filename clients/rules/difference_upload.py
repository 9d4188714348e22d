"""FedLaAvg at the client, with the memory at the clients."""

from __future__ import annotations

from clients.rules.base import SGD
from clients.rules.vectors import Rate, Vector


class DifferenceUpload(SGD):
    """Sends u_i^new - u_i^old (Yan et al. 2020, Algorithm 2); the local steps are those of SGD.

    u_i = a (y - w), or a (y - w) / s_i with `normalize`, where the server sends the factor a as an array of
    shape (..., 1). A client without a state has u_i^old = 0.

    State: `latest`, u_i, shape (..., M).
    """

    vectors = ("latest",)
    sends_weights = False

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        """Return the difference to the update of the last accepted round, and u_i."""
        u = y - self.weights
        u *= self.arrays[0]
        if self.config.own["normalize"]:
            u = u / steps
        return [u - self.state["latest"] if "latest" in self.state else u], {"latest": u}
