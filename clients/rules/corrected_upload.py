"""MimiC at the client, with the memory at the clients."""

from __future__ import annotations

from clients.rules.base import VectorUpload
from clients.rules.vectors import Rate, Vector


class CorrectedUpload(VectorUpload):
    """Sends v_i = ghat_i + c_i (Sun et al. 2024, Algorithm 1, line 6); the local steps are those of SGD.

    With `per-step`, ghat_i = (w - y) / (eta s_i) is the mean gradient of the client's steps, otherwise the
    whole change w - y. The correction is c_i = b_i - ghat_i of the client's last accepted round t: the server
    sends b_i, which is v_t, and the client keeps ghat_i. A client without a state has c_i = 0, whatever it
    receives.

    State: `update`, ghat_i, shape (..., M).
    """

    vectors = ("update",)

    def upload(self, y: Vector, steps: Rate, rate: Rate) -> list[Vector]:
        """Return the corrected update."""
        v = self._update(y, steps, rate)
        if "update" in self.state:
            v += self.arrays[0] - self.state["update"]
        return [v]

    def remember(self, y: Vector, steps: Rate, rate: Rate) -> dict[str, Vector]:
        """Return ghat_i."""
        return {"update": self._update(y, steps, rate)}

    def _update(self, y: Vector, steps: Rate, rate: Rate) -> Vector:
        change = self.weights - y
        return change / (rate * steps) if self.config.own["per-step"] else change
