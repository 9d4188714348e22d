"""EFL at the client: an elastic term in the local steps, and uploads compressed with error feedback.

Ma et al., "EFL: Elastic Federated Learning on Non-IID Data", Algorithm 1, ClientUpdate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clients.sgd import SGD, Oracle
from clients.ternary import pack, ternary


def elastic_gradient(y: Tensor, precision: Tensor, weighted: Tensor, strength: float) -> Tensor:
    """lambda (U o y - V), the gradient of EFL's elastic term (eq. 3); vectors (..., M).

    U = sum_i u_i and V = sum_i u_i o w_i: a pull towards the mean V / U of the other clients' models, in
    every entry as strong as their data determine it.
    """
    return (precision * y).sub_(weighted).mul_(strength)


class Elastic(SGD):
    """y -= eta (g(y) + lambda (U o y - V)); then D = R + y - w, sent = ST(D), R = D - sent.

    The server sends U and V, or neither while there are none. With the update go u = diag I(y), the diagonal
    of the Fisher information, and v = u o y; without elasticity nobody needs them.
    """

    @property
    def needs_fisher(self) -> bool:
        """Whether `fisher` is called."""
        return float(self.config["lambda"]) > 0

    @property
    def sends_weights(self) -> bool:
        """Whether the local weights are sent; else `upload` has all."""
        return not self.config["compress"]

    def step(self, y: Tensor, gradient: Oracle, rate: float) -> None:
        """Do one local step: change `y` in place."""
        step = gradient(y)
        if self.arrays:
            precision, weighted = self.arrays
            step = step + elastic_gradient(y, precision, weighted, float(self.config["lambda"]))
        y.sub_(step, alpha=rate)

    def upload(self, y: Tensor, steps: int, rate: float) -> list[Tensor]:
        """Return the packed update, if it is compressed, then u and v."""
        sent = [] if self.sends_weights else [pack(self._compress(y)[0])]
        if not self.needs_fisher:
            return sent
        u = self.fisher(y)
        return [*sent, u, u * y]

    def remember(self, y: Tensor, steps: int, rate: float) -> dict[str, Tensor]:
        """Return R, what compression has held back so far."""
        return {} if self.sends_weights else {"residual": self._compress(y)[1]}

    def _compress(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """ST(D) and D - ST(D)."""
        total = y - self.weights
        if "residual" in self.state:
            total += self.state["residual"]
        if not bool(torch.isfinite(total).all()):  # it would be lost among the entries that are kept
            raise ValueError("the update is not finite; is the learning rate too high?")
        sent = ternary(total, float(self.config["sparsity"]), str(self.config["ties"]))
        return sent, total - sent
