"""FedSGD: FedAvg with a single local step.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from strategies.fedavg import FedAvg, FedAvgOptions


class FedSGD(FedAvg):
    """One gradient step per round, on the whole local set unless `batch=mini`; local steps are ignored."""

    suits = "comparison: what local steps gain"
    options: FedSGDOptions

    def setup(self) -> None:
        """Ask every client for a single step."""
        batch_size = 0 if self.options.batch == "full" else self.options.batch_size
        self.options = replace(self.options, local_steps=1, local_epochs=0, batch_size=batch_size)


@dataclass(frozen=True, kw_only=True)
class FedSGDOptions(FedAvgOptions):
    """Options of FedSGD.

    Attributes
    ----------
    batch
        `full` takes the gradient on the client's whole set, `mini` on one batch of `batch_size`.
    """

    batch: Literal["full", "mini"] = "full"
