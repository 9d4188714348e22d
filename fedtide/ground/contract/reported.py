"""What simulated clients report of their training, in columns instead of a dictionary for each client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

REPORTED = np.dtype(
    [
        ("client", np.int64),
        ("num_examples", np.int64),
        ("steps", np.int64),
        ("train_loss", np.float64),
        ("final_loss", np.float64),
        ("update_norm", np.float64),
        ("resync", np.bool_),
    ]
)
"""One row: the client's index, n_k, and what `fedtide.ground.contract.metrics` names.

`update_norm` is the Euclidean norm of the local weights less those that the client started from; NaN if it
does not send its weights.
"""

Reported = NDArray[Any]
"""K such rows."""
