"""Fast reboot: an arriving device counts more at first (Ruan et al., section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from strategies import Replies, Roster, Stateful, Vector


def boost(since_shift: int, peak: float = 3.0) -> float:
    """Return 1 + (peak - 1) / (tau - tau_0)^2: `peak` in a device's first round, decaying to 1 as O(tau^-2).

    tau_0 is the last round of the objective without it. The paper has p_tau^l = 3 p^l at first (section 5.3).
    """
    return 1 + (peak - 1) / float(since_shift) ** 2


def near_old_optimum(old_gradient: float, new_gradient: float, share: float, factor: float = 1.0) -> bool:
    """Whether the extra update of an arriving device l helps: ||grad F(w)|| < factor p_l ||grad F_l(w)||.

    Corollary 4.0.2 asks for b = ||w - w*|| < (F~(w*) - F~(w~*)) / ((... + 1) p_l W) and lets b be estimated
    by the gradient norm of the old objective F. As grad F~(w*) = p_l grad F_l(w*), p_l being the device's
    share of the new objective F~, a mu-strongly convex F~ has F~(w*) - F~(w~*) of the order of
    p_l^2 ||grad F_l||^2 / mu; with b of the order of ||grad F(w)|| / mu and W, the bound on gradients, taken
    as ||grad F_l||, mu cancels and the condition above remains; `factor` is what the orders leave open.
    """
    return old_gradient < factor * share * new_gradient


class FastReboot(Stateful):
    """Decides once for each arriving device whether it is boosted.

    With `mode` `on` every one is, with `off` none, with `auto` those that come when the model is near its old
    optimum. ||grad F(w)|| is estimated in the last round without an undecided device: the rate is small then,
    so that local steps stay near w, which they no longer do once the arrival has restarted the rate.
    """

    saved = ("boosted", "old_gradient")

    def __init__(self, mode: str, peak: float, factor: float) -> None:
        self.mode, self.peak, self.factor = mode, peak, factor
        self.boosted: dict[int, bool] = {}  # the decisions so far
        self.old_gradient: float | None = None  # ||grad F(w)||

    def multipliers(
        self, replies: Replies, roster: Roster, server_round: int
    ) -> tuple[Vector, list[dict[str, Any]]]:
        """Factor of each reply's coefficient, shape (K,), and the decisions taken in this round."""
        factors = np.ones(len(replies))
        if self.mode == "off":
            return factors, []
        events = []
        arrived = np.flatnonzero(roster.joined[replies.clients] > 0).tolist()
        if self.mode == "auto":
            events = self._decide(arrived, replies, roster.share(replies.clients))
        for row in arrived:
            client = int(replies.clients[row])
            if self.boosted.get(client, self.mode == "on"):
                factors[row] = boost(server_round - roster.joined[client], self.peak)
        return factors, events

    def _decide(self, arrived: list[int], replies: Replies, shares: Vector) -> list[dict[str, Any]]:
        """Judge those of the arrived devices (rows of `replies`) that reply for the first time."""
        per_gradient = 1 / (replies.learning_rate * replies.steps)  # gradient = -delta / (eta s)
        new = [row for row in arrived if int(replies.clients[row]) not in self.boosted]
        old = shares.copy()
        old[new] = 0
        if old.any() and (not new or self.old_gradient is None):
            self.old_gradient = _norm(replies, old / old.sum() * per_gradient)
        if self.old_gradient is None:
            return []
        events = []
        for row in new:
            client, share = int(replies.clients[row]), float(shares[row])
            gradient = _norm(replies, np.where(np.arange(len(replies)) == row, per_gradient, 0.0))
            boosted = near_old_optimum(self.old_gradient, gradient, share, self.factor)
            self.boosted[client] = boosted
            numbers = {"old_gradient": self.old_gradient, "new_gradient": gradient, "share": share}
            events.append({"event": "fast-reboot", "client": client, "boosted": boosted, **numbers})
        return events


def _norm(replies: Replies, coefficients: Vector) -> float:
    return float(np.linalg.norm(replies.weighted_sum(coefficients)))
