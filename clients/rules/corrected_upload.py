"""MimiC at the client, with the memory at the clients."""

from __future__ import annotations

from clients.rules.base import SGD
from clients.rules.vectors import Rate, Vector


class CorrectedUpload(SGD):
    """Sends v_i = ghat_i + c_i (Sun et al. 2024, Algorithm 1, line 6); the local steps are those of SGD.

    With `per-step`, ghat_i = (w - y) / (eta s_i) is the mean gradient of the client's steps, otherwise the
    whole change w - y. The correction is c_i = b_i - ghat_i of the client's last accepted round t: the server
    sends b_i, which is v_t, and the client keeps ghat_i. A client without a state has c_i = 0, whatever it
    receives.

    State: `update`, ghat_i, shape (..., M).
    """

    vectors = ("update",)
    sends_weights = False

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        """Return v_i and ghat_i."""
        ghat = self.weights - y
        if self.config.own["per-step"]:
            ghat = ghat / (rate * steps)
        v = ghat + (self.arrays[0] - self.state["update"]) if "update" in self.state else ghat
        return [v], {"update": ghat}
