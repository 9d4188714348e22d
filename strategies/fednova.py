"""FedNova: the mean of normalised updates has the right objective, however different the local steps.

Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS, eq. (8). With s_k the local steps that client k did,

    w := w + eta_g tau_eff sum_S q_k delta_k / s_k,    tau_eff = sum_S q_k s_k / sum_S q_k.

It differs from scheme C (which is `q=members` with `tau=planned`) in two things: it divides by those present,
and a round of little work makes a short step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.core.options import Options, choice, positive
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.fedavg import mean_coefficients


class FedNova(FlexibleStrategy):
    """w += eta_g tau_eff sum_S q_k delta_k / s_k: a client that does more steps does not count more."""

    options: FedNovaOptions

    def update(self, replies: Replies) -> None:
        """Move along the mean normalised update, as far as the mean number of steps goes."""
        q = self.weights_of(replies)
        work = replies.steps if self.options.tau == "steps" else replies.planned
        tau = float(q @ work / q.sum())
        self.weights += self.options.server_rate * tau * replies.weighted_sum(q / replies.steps)

    def weights_of(self, replies: Replies) -> NDArray[np.float64]:
        """q_k of those who replied, shape (K,)."""
        if self.options.q == "present":
            return mean_coefficients(replies.num_examples, "n")
        p = self.roster.shares[replies.clients]
        return p * (self.roster.num_contributors / len(replies)) if self.options.q == "scaled" else p


@dataclass(frozen=True, kw_only=True)
class FedNovaOptions(Options):
    """Options of FedNova.

    Attributes
    ----------
    q
        `present` weights clients by their share of the examples of those who replied, `members` by their
        share p_k among all members, `scaled` by p_k N / |S| (the paper's footnote for sampled clients).
    tau
        tau_eff: `steps` is the mean of the steps done, `planned` that of the steps asked for.
    server_rate
        eta_g.
    """

    q: str = choice("present", "members", "scaled")
    tau: str = choice("steps", "planned")
    server_rate: float = positive(1.0)
