"""FedNova: the mean of normalised updates has the right objective, however different the local steps.

Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS, eq. (8). With s_k the local steps that client k did,

    w := w + eta_g tau_eff sum_S q_k delta_k / a_k,    tau_eff = sum_S q_k s_k / sum_S q_k.

The normaliser a_k is the weight of the gradients in delta_k: s_k for SGD, and for FedProx's steps with mu > 0
("FedNova-Prox") (1 - (1 - eta mu)^s_k) / (eta mu). FedNova differs from scheme C (which is `q=members` with
`tau=planned`) in two things: it divides by those present, and a round of little work makes a short step. In
event time a late reply counts like any other of the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies import FlexibleStrategy, NotNegative, Replies, ServerRateOptions, Vector
from strategies.fedprox import FedProx


class FedNova(FlexibleStrategy):
    """w += eta_g tau_eff sum_S q_k delta_k / a_k: a client that does more steps does not count more."""

    suits = "devices that do different work, where few of all reply in a round"
    options: FedNovaOptions
    late_replies = "event-time"
    needs_steps = True

    def update(self, replies: Replies) -> None:
        """Move along the mean normalised update, as far as the mean number of steps goes."""
        q, a = self.weights_of(replies), self.normalisers(replies)
        work = {"steps": replies.steps, "norm": a, "planned": replies.planned}[self.options.tau]
        tau = float(q @ work / q.sum())
        self.weights += self.options.server_rate * tau * replies.weighted_sum(q / a)

    def normalisers(self, replies: Replies) -> Vector:
        """a_k of those who replied, shape (K,)."""
        return replies.steps.astype(np.float64)

    def weights_of(self, replies: Replies) -> Vector:
        """q_k of those who replied, shape (K,)."""
        if self.options.q == "present":
            return replies.mean_coefficients("n")
        p = self.roster.share(replies.clients)
        return p * (self.roster.num_contributors / len(replies)) if self.options.q == "scaled" else p


class FedNovaProximal(FedNova):
    """FedNova with FedProx's local steps."""

    rule = FedProx.rule

    def normalisers(self, replies: Replies) -> Vector:
        """a_k of those who replied, shape (K,)."""
        pull = replies.learning_rate * self.options.mu
        small = np.minimum(pull, 0.5)  # for which the formula would cancel
        exact = -np.expm1(replies.steps * np.log1p(-small)) / small
        return np.where(pull == small, exact, (1 - (1 - pull) ** replies.steps) / pull)


@dataclass(frozen=True, kw_only=True)
class FedNovaOptions(ServerRateOptions):
    """Options of FedNova.

    Attributes
    ----------
    q
        `present` weights clients by their share of the examples of those who replied, `members` by their
        share p_k among all members, `scaled` by p_k N / |S| (the paper's footnote for sampled clients).
    tau
        tau_eff: `steps` is the mean of the steps done, `norm` that of the a_k (the paper's eq. 7), `planned`
        that of the steps asked for.
    mu
        Strength of FedProx's proximal term; 0: plain SGD.
    """

    q: Literal["present", "members", "scaled"] = "present"
    tau: Literal["steps", "norm", "planned"] = "steps"
    mu: NotNegative = 0.0
