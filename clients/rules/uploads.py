"""What clients send instead of their weights, where the method's memory is theirs.

The local steps are those of SGD. The server uses nothing but the sum of what the clients send.
"""

from __future__ import annotations

from torch import Tensor

from clients.rules.sgd import SGD, Oracle, Rate


class Upload(SGD):
    """The base: one vector, shape (..., M), is sent, and no weights."""

    @property
    def sends_weights(self) -> bool:
        """Whether the local weights are sent; else `upload` has all."""
        return False


class CorrectedUpload(Upload):
    """MimiC: v_i = ghat_i + c_i is sent (Sun et al. 2024, Algorithm 1, line 6).

    With `per-step`, ghat_i = (w - y) / (eta s_i) is the mean gradient of the client's steps, else the whole
    way, w - y. The client remembers ghat_i; the server sends b = v_t of its last accepted round t, so that
    the correction is c_i = b - ghat_i of then. A client without memory has c_i = 0, whatever it is sent.
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
        way = self.weights - y
        return way / (rate * steps) if self.config["per-step"] else way


class DifferenceUpload(Upload):
    """FedLaAvg: u_i^new - u_i^old is sent (Yan et al. 2020, Algorithm 2).

    u_i = a (y - w), with `normalize` a (y - w) / s_i, by a factor a that the server sends: an array of shape
    (..., 1). A client without memory has u_i^old = 0.
    """

    def upload(self, y: Tensor, steps: Rate, rate: Rate) -> list[Tensor]:
        """Return the difference to what was sent in the last accepted round."""
        u = self._latest(y, steps)
        if "latest" in self.state:
            u -= self.state["latest"]
        return [u]

    def remember(self, y: Tensor, steps: Rate, rate: Rate) -> dict[str, Tensor]:
        """Return u_i."""
        return {"latest": self._latest(y, steps)}

    def _latest(self, y: Tensor, steps: Rate) -> Tensor:
        way = (y - self.weights).mul_(self.arrays[0])
        return way / steps if self.config["normalize"] else way


class Farewell(Upload):
    """A client that leaves: it sends the vector that it remembers, nothing if it has forgotten it."""

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Stay; the loss at the global weights is reported."""
        gradient(y)

    def upload(self, y: Tensor, steps: Rate, rate: Rate) -> list[Tensor]:
        """Return what is remembered."""
        return list(self.state.values())
