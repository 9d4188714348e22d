"""Whether to keep a departing client's part of the objective (Ruan et al., Corollary 4.0.3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Replies
from strategies.core.roster import Clients
from strategies.core.state import ByClient

SMOOTHING = 0.3  # weight of the newest loss in the running mean


def exclusion_pays(remaining: int, gamma: float, shift: int, constant: float = 1.0) -> bool:
    """Decide whether to exclude: T - tau_0 >= constant * sqrt(Gamma_l tau_0) (Corollary 4.0.3, eq. 9).

    `remaining` is T - tau_0, rounds left after the departure, `shift` tau_0, those done, and `constant` the
    O(.) of the paper. `gamma`, Gamma_l = F_l(w*) - F_l^*, is how far the client's data differ from the rest.
    """
    return remaining >= constant * math.sqrt(gamma * shift)


def judge(gamma: float, shift: int, num_rounds: int, constant: float) -> dict[str, Any]:
    """Decide on a departure after round `shift`, with the numbers that the decision rests on.

    An unknown Gamma_l (`gamma` NaN) or an unknown T (`num_rounds` 0) counts in favour of excluding.
    """
    remaining, known = max(0, num_rounds - shift), not math.isnan(gamma)
    exclude = not known or not num_rounds or exclusion_pays(remaining, gamma, shift, constant)
    return {
        "objective": "exclude" if exclude else "include",
        "remaining": remaining,
        "gamma": gamma if known else None,
        "tau_0": shift,
        "constant": constant,
    }


class LossTracker(ByClient):
    """Estimates Gamma_l from the losses that a client reports beside its weights.

    F_l(w*) is estimated by the running mean of its training loss near the global model, F_l^* by the lowest
    loss that its own local training ever reached. A client that reports no final loss counts with F_l^* = 0,
    the lower bound of every loss here, so that its Gamma_l is over- rather than underestimated.
    """

    saved = ("mean", "lowest")

    def __init__(self) -> None:
        self.mean: NDArray[np.float64] = np.empty(0)  # NaN where no loss was reported
        self.lowest: NDArray[np.float64] = np.empty(0)

    def update(self, replies: Replies) -> None:
        """Take in the losses of a round."""
        clients, loss, final = replies.clients, replies.train_loss, replies.final_loss
        self.extend(int(clients.max()) + 1)
        mean = self.mean[clients]
        new = loss + (1 - SMOOTHING) * (np.where(np.isnan(mean), loss, mean) - loss)
        self.mean[clients] = np.where(np.isfinite(loss), new, mean)
        self.lowest[clients] = np.fmin(self.lowest[clients], np.where(np.isfinite(final), final, np.nan))

    def gammas(self, clients: Clients) -> NDArray[np.float64]:
        """Gamma_l of some clients, NaN for those that never reported a loss, shape (K,)."""
        self.extend(int(clients.max(initial=-1)) + 1)
        lowest = self.lowest[clients]
        gammas: NDArray[np.float64] = self.mean[clients] - np.where(np.isnan(lowest), 0.0, lowest)
        return np.maximum(gammas, 0.0)
