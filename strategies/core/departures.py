"""Whether to keep a departing client's part of the objective (Ruan et al., Corollary 4.0.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategies.core.replies import Replies
from strategies.core.state import Stateful

SMOOTHING = 0.3  # weight of the newest loss in the running mean


def exclusion_pays(remaining: int, gamma: float, shift: int, constant: float = 1.0) -> bool:
    """Decide whether to exclude: T - tau_0 >= constant * sqrt(Gamma_l tau_0) (Corollary 4.0.3, eq. 9).

    `remaining` is T - tau_0, rounds left after the departure, `shift` tau_0, those done, and `constant` the
    O(.) of the paper. `gamma`, Gamma_l = F_l(w*) - F_l^*, is how far the client's data differ from the rest.
    """
    return remaining >= constant * math.sqrt(gamma * shift)


def judge(gamma: float | None, shift: int, num_rounds: int, constant: float) -> dict[str, Any]:
    """Decide on a departure after round `shift`, with the numbers that the decision rests on.

    An unknown Gamma_l (`gamma` None) or an unknown T (`num_rounds` 0) counts in favour of excluding.
    """
    remaining = max(0, num_rounds - shift)
    exclude = gamma is None or not num_rounds or exclusion_pays(remaining, gamma, shift, constant)
    return {
        "objective": "exclude" if exclude else "include",
        "remaining": remaining,
        "gamma": gamma,
        "tau_0": shift,
        "constant": constant,
    }


@dataclass
class LossTracker(Stateful):
    """Estimates Gamma_l from the losses that a client reports beside its weights.

    F_l(w*) is estimated by the running mean of its training loss near the global model, F_l^* by the lowest
    loss that its own local training ever reached. A client that reports no final loss counts with F_l^* = 0,
    the lower bound of every loss here, so that its Gamma_l is over- rather than underestimated.
    """

    saved = ("mean", "lowest")

    mean: dict[int, float] = field(default_factory=dict)
    lowest: dict[int, float] = field(default_factory=dict)

    def update(self, replies: Replies) -> None:
        """Take in the losses of a round."""
        columns = (replies.clients, replies.train_loss, replies.final_loss)
        for client, loss, final in zip(*(column.tolist() for column in columns), strict=True):
            if math.isfinite(loss):
                self.mean[client] = loss + (1 - SMOOTHING) * (self.mean.get(client, loss) - loss)
            if math.isfinite(final):
                self.lowest[client] = min(final, self.lowest.get(client, np.inf))

    def forget(self, client: int) -> None:
        """Forget a client: should it come back, it is new."""
        self.mean.pop(client, None)
        self.lowest.pop(client, None)

    def gamma(self, client: int) -> float | None:
        """Gamma_l of a client; None if it never reported a loss."""
        if client not in self.mean:
            return None
        return max(0.0, self.mean[client] - self.lowest.get(client, 0.0))
