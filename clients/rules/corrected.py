"""SCAFFOLD, FedGATE and VRL-SGD at the client: steps in a corrected direction."""

from __future__ import annotations

from clients.rules.base import SGD, Oracle, descend
from clients.rules.vectors import Rate, Vector, subtract


class Corrected(SGD):
    """y -= eta (g(y) + d) with a direction d, shape (..., M), that the server sends to each client.

    SCAFFOLD has d = c - c_i, FedGATE and VRL-SGD have d = -delta_i.
    """

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        if not self.arrays:  # the server sends none while it is zero
            return super().step(y, gradient, rate)
        descend(y, gradient, rate, lambda y: subtract(y, self.arrays[0], rate))
