"""MimiC at the client, where the clients keep the corrections."""

from __future__ import annotations

from torch import Tensor

from clients.rules.base import Rate, VectorUpload


class CorrectedUpload(VectorUpload):
    """v_i = ghat_i + c_i is sent (Sun et al. 2024, Algorithm 1, line 6); the local steps are those of SGD.

    With `per-step`, ghat_i = (w - y) / (eta s_i) is the mean gradient of the client's steps, else the whole
    change, w - y. The client remembers ghat_i; the server sends b_i, which for a client whose reply counted
    in round t is v_t, so that the correction is c_i = b_i - ghat_i of then. A client without memory has
    c_i = 0, whatever it is sent.
    """

    def upload(self, y: Tensor, steps: Rate, rate: Rate) -> list[Tensor]:
        """Return the corrected update."""
        v = self._update(y, steps, rate)
        if "update" in self.state:
            v += self.arrays[0] - self.state["update"]
        return [v]

    def remember(self, y: Tensor, steps: Rate, rate: Rate) -> dict[str, Tensor]:
        """Return ghat_i."""
        return {"update": self._update(y, steps, rate)}

    def _update(self, y: Tensor, steps: Rate, rate: Rate) -> Tensor:
        change = self.weights - y
        return change / (rate * steps) if self.config.own["per-step"] else change
