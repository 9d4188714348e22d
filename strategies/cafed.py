"""CA-Fed: unbiased weights, without clients that are rarely available and in long spells.

Rodio et al. 2023, "Federated Learning under Heterogeneous and Correlated Client Availability", INFOCOM,
Algorithm 1. With pi_k the share of rounds in which client k is available, w := w + eta_g sum_S q_k delta_k
over the available clients (here E / s_k delta_k), where

    q_k := p_k / pi_k;  then q_k := 0, one by one, if it reduces the error below by more than `tolerance`:
    first in descending order of |lambda_k|, the correlation with the round before, then in ascending order
    of pi_k;
    error := sum_kept p_k f_k / sum_kept p_k + bias max_k f_k (sum_excluded p_k)^2,    f_k = F_k(w) - F_k^*.

There, all available clients report F_k(w) before the selection, and F_k^* is given; here f_k comes from the
losses in earlier replies, as for `departure=auto`, and their mean stands for unknown ones. So that it stays
up to date, a client with q_k = 0 does one local step, which does not count. The authors' program is given
pi_k and lambda_k, or a prior of them; here both are estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies import Clients, FlexibleStrategy, LossTracker, NotNegative, Replies, Task
from strategies.fedavg import FedAvgOptions
from strategies.parts.availability import Availability


class CAFed(FlexibleStrategy):
    """p_k / pi_k for available clients; those that are rarely there, and in long spells, are left out."""

    suits = "availability that differs and comes in spells, where some bias is allowed"
    options: CAFedOptions
    saved = ("availability", "losses")

    def setup(self) -> None:
        """Start with nothing observed."""
        self.availability, self.losses = Availability(), LossTracker()

    def observe(self, available: Clients) -> None:
        """Update pi_k and lambda_k, and decide whose q_k is 0."""
        self.availability.observe(available, self.roster.member)
        self.available = len(available)
        self.excluded = np.zeros(len(self.roster), bool)
        self.excluded[self._excluded()] = True

    def task(self, client: int) -> Task | None:
        """Ask a client with q_k = 0 for one step."""
        return Task(local_steps=1) if self.excluded[client] else None

    def update(self, replies: Replies) -> None:
        """w := w + eta_g sum_S q_k delta_k, scaled up where only some of the available were asked."""
        self.losses.update(replies)
        q = self.roster.share(replies.clients, self.options.weights) * replies.work_factors(normalize=True)
        q *= self.available / len(self.selected) / self.availability.shares(replies.clients)
        q[self.excluded[replies.clients]] = 0
        self.weights += self.options.server_rate * replies.weighted_sum(q)

    def _excluded(self) -> Clients:
        """Return the members with q_k = 0, by the losses and the availability so far."""
        members = np.flatnonzero(self.roster.contributors)
        f = self.losses.gammas(members)  # NaN where not known
        if np.isnan(f).all():
            return members[:0]
        f[np.isnan(f)] = np.nanmean(f)
        p = self.roster.share(members, self.options.weights)
        pi, correlation = self.availability.shares(members), self.availability.correlations(members)
        order = np.concatenate([np.argsort(key, kind="stable") for key in (-np.abs(correlation), pi)])
        return members[~worth_keeping(p, f, order, self.options.bias, self.options.tolerance)]

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Forget the losses of those who left."""
        for client in left.tolist():
            self.losses.forget(client)


def worth_keeping(
    p: NDArray[np.float64], f: NDArray[np.float64], order: Clients, bias: float, tolerance: float
) -> NDArray[np.bool_]:
    """Exclude clients in some order, each if the error falls by more than `tolerance`; return who is kept."""
    kept, share, loss = np.ones(len(p), bool), 1.0, float(p @ f)  # the sums over those kept
    penalty = bias * f.max()

    def error(share: float, loss: float) -> float:
        return float(loss / share + penalty * (1 - share) ** 2)

    for k in order[p[order] > 0].tolist():
        less = share - p[k], loss - p[k] * f[k]
        if kept[k] and less[0] > 1e-9 and error(share, loss) - error(*less) > tolerance:
            kept[k], (share, loss) = False, less
    return kept


@dataclass(frozen=True, kw_only=True)
class CAFedOptions(FedAvgOptions):
    """Options of CA-Fed.

    Attributes
    ----------
    bias
        Factor of the second term of the error, for the clients that are left out; a large one keeps all.
    tolerance
        By how much the error has to fall for a client to be left out; a large one keeps all.
    """

    bias: NotNegative = 1.0
    tolerance: NotNegative = 0.0
