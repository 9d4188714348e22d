"""EFL at the client: an elastic term in the local steps, and uploads compressed with error feedback.

Ma et al., "EFL: Elastic Federated Learning on Non-IID Data", Algorithm 1, ClientUpdate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from clients.rules.base import SGD, Oracle, Own, descend
from clients.rules.vectors import Rate, Vector, as_array, is_finite, subtract
from fedtide.base.contract import ternary as codec

if TYPE_CHECKING:
    from torch import Tensor


def elastic_gradient(y: Vector, precision: Vector, weighted: Vector, strength: float) -> Vector:
    """lambda (U o y - V), the gradient of EFL's elastic term (eq. 3); vectors (..., M).

    U = sum_i u_i and V = sum_i u_i o w_i: a pull towards the mean V / U of the clients' models, in each entry
    as strong as their data determine it.
    """
    pull = precision * y
    pull -= weighted
    pull *= strength
    return pull


class Elastic(SGD):
    """y -= eta (g(y) + lambda (U o y - V)); then D = R + y - w, sent = ST(D), R = D - sent.

    The server sends U and V once it has them. Unless lambda is 0, u = diag I(y), the diagonal of the Fisher
    information, and v = u o y follow the update.

    State: `residual`, R, shape (..., M).
    """

    vectors = ("residual",)

    def setup(self) -> None:
        self.sends_weights = not self.config.own["compress"]

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        if not self.arrays:
            return super().step(y, gradient, rate)
        descend(y, gradient, rate, lambda y: self._pull(y, rate))

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[list[Own], dict[str, Vector]]:
        """Return the packed update if updates are compressed, then u and v; and R."""
        sent: list[Own] = []
        state: dict[str, Vector] = {}
        if not self.sends_weights:
            update, state["residual"] = self._compress(y)
            sent.append(pack(update) if update.ndim == 1 else [pack(row) for row in update])
        if float(self.config.own["lambda"]):
            u = self.fisher(y)
            sent += [u, u * y]
        return sent, state

    def _pull(self, y: Vector, rate: Rate) -> None:
        precision, weighted = self.arrays
        subtract(y, elastic_gradient(y, precision, weighted, float(self.config.own["lambda"])), rate)

    def _compress(self, y: Vector) -> tuple[Vector, Vector]:
        """ST(D) and D - ST(D)."""
        total = y - self.weights
        if "residual" in self.state:
            total += self.state["residual"]
        if not is_finite(total):  # the ternary vector would not show it
            raise ValueError("the update is not finite; is the learning rate too high?")
        sent = ternary(total, int(self.config.own["kept"]), str(self.config.own["ties"]))
        return sent, total - sent


def ternary(vector: Vector, k: int, ties: str = "exact") -> Vector:
    """ST(T) of each vector of (..., M) independently (Ma et al., EFL, Algorithm 2)."""
    if isinstance(vector, np.ndarray):
        return np.apply_along_axis(codec.ternary, -1, vector, k, ties)
    vector = cast("Tensor", vector)
    size = vector.abs()
    edge = size.kthvalue(size.shape[-1] - k + 1, dim=-1, keepdim=True).values
    mask = size >= edge
    if ties == "exact":
        above, tied = size > edge, size == edge
        mask = above | (tied & (tied.cumsum(dim=-1) <= k - above.sum(dim=-1, keepdim=True)))
    total = (size * mask).sum(dim=-1, keepdim=True)
    if ties == "mean":
        total = total - edge * (mask.sum(dim=-1, keepdim=True) - k)
    magnitude = total / k
    return magnitude * vector.sign() * mask


def pack(vector: Vector) -> Vector:
    """Encode one ternary vector, shape (M,), as bytes; see `codec.pack`."""
    if isinstance(vector, np.ndarray):
        return codec.pack(vector)
    import torch

    return torch.from_numpy(codec.pack(as_array(vector)))
