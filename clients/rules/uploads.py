"""Methods with their memory at the clients, which send one vector instead of their weights.

The local steps are those of SGD. A client without a state has c_i = 0 and u_i^old = 0,
whatever it receives.
"""

from __future__ import annotations

from clients.rules.base import SGD
from clients.rules.vectors import Rate, Vector


class CorrectedUpload(SGD):
    """MimiC: sends v_i = ghat_i + c_i (Sun et al. 2024, Algorithm 1, line 6).

    With `per-step`, ghat_i = (w - y) / (eta s_i) is the mean gradient of the client's steps, otherwise the
    whole change w - y. The correction is c_i = b_i - ghat_i of the client's last accepted round t: the server
    sends b_i, which is v_t, and the client keeps ghat_i.

    State: `update`, ghat_i, shape (..., M).
    """

    vectors = ("update",)
    sends_weights = False

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        ghat = self.weights - y
        if self.config.own["per-step"]:
            ghat = ghat / (rate * steps)
        v = ghat + (self.arrays[0] - self.state["update"]) if "update" in self.state else ghat
        return [v], {"update": ghat}


class DifferenceUpload(SGD):
    """FedLaAvg: sends u_i^new - u_i^old (Yan et al. 2020, Algorithm 2).

    u_i = a (y - w), or a (y - w) / s_i with `normalize`, where the server sends the factor a as an array of
    shape (..., 1).

    State: `latest`, u_i, shape (..., M).
    """

    vectors = ("latest",)
    sends_weights = False

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Vector], dict[str, Vector]]:
        u = self.upload(y, steps, rate)
        return [u - self.state["latest"] if "latest" in self.state else u], {"latest": u}

    def upload(self, y: Vector, steps: Rate, rate: Rate) -> Vector:
        """Return u_i."""
        u = y - self.weights
        u *= self.arrays[0]
        return u / steps if self.config.own["normalize"] else u
