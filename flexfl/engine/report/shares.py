"""Update shares where they can be computed in seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flexfl.config import Settings
from flexfl.engine.report.update_shares import update_shares
from traces import Trace

MOST = 20_000  # clients x rounds; a thousand take about 0.4 seconds


def bounded_shares(settings: Settings, sizes: NDArray[np.int64], trace: Trace) -> NDArray[np.float64] | str:
    """Return each client's share of what was applied to the weights, shape (N,), or why it is not known."""
    work = trace.num_clients * settings.num_rounds
    if work > MOST:
        return f"Shares of the updates are computed up to {MOST:,} clients x rounds, these are {work:,}."
    try:
        return update_shares(settings, sizes, trace)
    except ValueError as error:
        return f"There are no shares of the updates: {error}."
