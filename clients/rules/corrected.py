"""SCAFFOLD, FedGATE and VRL-SGD at the client: steps in a corrected direction."""

from __future__ import annotations

from clients.rules.base import SGD, Correction


class Corrected(SGD):
    """y -= eta (g(y) + d) with a direction d, shape (..., M), that the server sends to each client.

    SCAFFOLD has d = c - c_i, FedGATE and VRL-SGD have d = -delta_i.
    """

    def correction(self) -> Correction:
        """Return d; the server sends none while it is zero."""
        return Correction(direction=self.arrays[0] if self.arrays else None)
