"""Update shares, of as many rounds as can be played in seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flexfl.config import Settings
from flexfl.report.update_shares import update_shares
from traces import Trace

MOST = 20_000  # client updates that are played: a thousand take about 0.1 seconds


def bounded_shares(
    settings: Settings, sizes: NDArray[np.int64], trace: Trace, clients: NDArray[np.intp]
) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Return some clients' shares of what was applied to the weights, and sentences on what these are not.

    Parameters
    ----------
    settings, sizes, trace
        Of the run; n_k of all clients, shape (N,).
    clients
        Which ones, shape (C,).

    Returns
    -------
    shares, notes
        Shape (C,); None if they are not known.
    """
    asked = settings.clients_per_round or trace.num_clients
    if asked > MOST:
        return None, [f"Shares of the updates are computed for up to {MOST:,} clients in a round."]
    rounds = min(settings.num_rounds, MOST // asked)
    groups = np.full(trace.num_clients, len(clients))  # all others together
    groups[clients] = np.arange(len(clients))
    try:
        shares = update_shares(settings, sizes, trace, groups, rounds)[: len(clients)]
    except ValueError as error:
        return None, [f"There are no shares of the updates: {error}."]
    part = f"Shares of the updates: of the first {rounds:,} of {settings.num_rounds:,} rounds."
    return shares, [part] if rounds < settings.num_rounds else []
