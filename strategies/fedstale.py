"""FedStale: stale updates count in part, and rare clients by how rare they are.

Rodio & Neglia 2024, "FedStale: Leveraging Stale Client Updates in Federated Learning"; the algorithm is that
of strategies/fedvarp.py with other defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies import Share
from strategies.fedvarp import FedVARP, FedVARPOptions


class FedStale(FedVARP):
    """FedVARP with weight beta on stale updates, and FedAU's weights p_k omega_k for those who replied."""

    suits = "rates of participation that differ much: between FedAU and FedVARP"
    options: FedStaleOptions


@dataclass(frozen=True, kw_only=True)
class FedStaleOptions(FedVARPOptions):
    """Options of FedStale.

    Attributes
    ----------
    beta
        Weight of the stale updates, 0 to 1.
    agg
        a_k: `prob` multiplies p_k by FedAU's omega_k, `mean` divides by those who replied.
    """

    beta: Share = 0.5
    agg: Literal["prob", "mean"] = "prob"
