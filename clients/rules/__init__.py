"""What methods change about local SGD, as rules on flat vectors with any number of leading axes (..., M).

A rule is written once: the same code trains one client, a stacked cohort of clients, and a client on a
device. Only the gradient oracle underneath differs.
"""

from __future__ import annotations

from torch import Tensor

from clients.rules.elastic import Elastic
from clients.rules.personal import APFL, PFedMe
from clients.rules.sgd import SGD, Config, Oracle, Rate, descend, subtract
from clients.rules.uploads import CorrectedUpload, DifferenceUpload, Farewell

__all__ = ["RULES", "SGD", "Config", "Oracle"]


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        share = rate * float(self.config["mu"])
        descend(y, gradient, rate, lambda y: y.lerp_(self.weights, share))


class Corrected(SGD):
    """y -= eta (g(y) + d) with a direction d, shape (..., M), that the server sends to each client.

    SCAFFOLD has d = c - c_i, FedGATE and VRL-SGD have d = -delta_i.
    """

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        if not self.arrays:  # the server sends none while it is zero
            return super().step(y, gradient, rate)
        descend(y, gradient, rate, lambda y: subtract(y, self.arrays[0], rate))


RULES: dict[str, type[SGD]] = {
    "sgd": SGD,
    "proximal": Proximal,
    "corrected": Corrected,
    "apfl": APFL,
    "pfedme": PFedMe,
    "elastic": Elastic,
    "corrected-upload": CorrectedUpload,
    "difference-upload": DifferenceUpload,
    "farewell": Farewell,
}
