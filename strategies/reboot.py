"""Fast reboot: an arriving device counts more at first (Ruan et al., section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.replies import Replies
from strategies.roster import Roster


def boost(since_shift: NDArray[np.int64], peak: float = 3.0) -> NDArray[np.float64]:
    """Return 1 + (peak - 1) / (tau - tau_0)^2: `peak` in a device's first round, decaying to 1 as O(tau^-2).

    Parameters
    ----------
    since_shift
        tau - tau_0 of each device, at least 1: tau_0 is the last round of the objective without it.
    peak
        Factor in the first round; the paper's p_tau^l = 3 p^l (section 5.3). 1 switches the boost off.
    """
    return 1 + (peak - 1) / np.square(since_shift, dtype=np.float64)


def near_old_optimum(old_gradient: float, new_gradient: float, share: float, factor: float = 1.0) -> bool:
    """Whether the extra update of an arriving device helps: ||grad F(w)|| < factor p_l ||grad F_l(w)|| / 2.

    Corollary 4.0.2 asks for b = ||w - w*|| < (F~(w*) - F~(w~*)) / ((...+ 1) p_l W) and lets b be estimated by
    the gradient norm of the old objective F. As grad F~(w*) = p_l grad F_l(w*), a mu-strongly convex F~ has
    F~(w*) - F~(w~*) of about p_l^2 ||grad F_l||^2 / (2 mu); with b <= ||grad F(w)|| / mu and W, the bound on
    gradients, taken as ||grad F_l||, mu cancels and the condition above remains.

    Parameters
    ----------
    old_gradient
        ||grad F(w)|| of the objective without the arriving device.
    new_gradient
        ||grad F_l(w)|| of the arriving device.
    share
        p_l, its share of the new objective.
    factor
        Allowance for what the estimate neglects.
    """
    return old_gradient < factor * share * new_gradient / 2


class FastReboot:
    """Decides once for each arriving device whether it is boosted, and remembers it.

    Parameters
    ----------
    mode
        `on` boosts every arrival, `off` none, `auto` those that come when the model is near its old optimum,
        as judged in the first round in which both the device and an older one reply.
    peak, factor
        See `boost` and `near_old_optimum`.
    """

    def __init__(self, mode: str, peak: float, factor: float) -> None:
        self.mode, self.peak, self.factor = mode, peak, factor
        self.decided: dict[int, bool] = {}

    def multipliers(
        self, replies: Replies, roster: Roster, server_round: int, learning_rate: float
    ) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """Factor of each reply's coefficient, shape (K,), and the decisions taken in this round."""
        arrived = roster.joined[replies.clients] > 0
        factors = np.ones(len(replies))
        if self.mode == "off" or not arrived.any():
            return factors, []
        events = self._decide(replies, arrived, roster, learning_rate) if self.mode == "auto" else []
        boosted = np.array(
            [
                a and self.decided.get(c, self.mode == "on")
                for c, a in zip(replies.clients.tolist(), arrived, strict=True)
            ]
        )
        since_shift = server_round - roster.joined[replies.clients[boosted]]
        factors[boosted] = boost(since_shift, self.peak)
        return factors, events

    def _decide(
        self, replies: Replies, arrived: NDArray[np.bool_], roster: Roster, learning_rate: float
    ) -> list[dict[str, Any]]:
        new = np.array(
            [a and c not in self.decided for c, a in zip(replies.clients.tolist(), arrived, strict=True)]
        )
        if not new.any() or new.all():
            return []
        shares = roster.shares[replies.clients]
        per_gradient = 1 / (learning_rate * replies.steps)  # gradient = -delta / (eta s)
        old = np.where(new, 0.0, shares)
        old_gradient = float(np.linalg.norm(replies.weighted_sum(old / old.sum() * per_gradient)))
        events = []
        for row in np.flatnonzero(new).tolist():
            only = np.zeros(len(replies))
            only[row] = per_gradient[row]
            gradient = float(np.linalg.norm(replies.weighted_sum(only)))
            client = int(replies.clients[row])
            near = near_old_optimum(old_gradient, gradient, float(shares[row]), self.factor)
            self.decided[client] = near
            events.append(
                {
                    "event": "fast-reboot",
                    "client": client,
                    "boosted": near,
                    "old_gradient": old_gradient,
                    "new_gradient": gradient,
                    "share": float(shares[row]),
                }
            )
        return events
