"""How much each client counts, by the option `weights`: `n` by its examples, `uniform` all clients alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.core.roster import Clients, Roster


def shares(roster: Roster, clients: Clients, weights: str) -> NDArray[np.float64]:
    """p_k = n_k / n, or 1 / N with `uniform`, over all members (not over those who reply). Shape (K,)."""
    if weights == "n":
        return roster.share(clients)
    return np.full(len(clients), 1 / max(1, roster.num_contributors))


def relative_shares(roster: Roster, clients: Clients, weights: str) -> NDArray[np.float64]:
    """N p_k, 1 for a client with as much data as the others have on average. Shape (K,)."""
    return roster.num_contributors * roster.share(clients) if weights == "n" else np.ones(len(clients))
