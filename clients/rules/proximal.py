"""FedProx at the client."""

from __future__ import annotations

from clients.rules.base import SGD, Correction


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def correction(self) -> Correction:
        """Return mu (y - w)."""
        return Correction(strength=float(self.config.own["mu"]))
