"""FedAU: updates are weighted by the mean interval between a client's participations.

Wang & Ji 2024, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
ICLR, Algorithms 1 and 2. With omega_k from the intervals before the round (parts/participation.py),

    w := w + eta_g sum_{k in S} p_k omega_k delta_k.

A client that takes part with probability p has omega_k near 1 / p, so that on average all members count by
their p_k. The coefficients of a round need not sum to 1. At a constant rate the model swings around the
optimum: methods with a table have less variance, this one needs three numbers per client. A late reply is a
participation in the round in which it arrives.

Debiasing FedAvg (Sun et al. 2025, "Debiasing Federated Learning with Correlated Client Participation", ICLR,
Algorithm 1) is the same with omega_k = (rounds so far) / (participations so far), this round in both. It
divides the client's learning rate by the frequency instead of multiplying its update, which is the same for
one local step and leaves more bias with several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies import Clients, CountOrZero, FlexibleStrategy, Replies
from strategies.fedavg import FedAvgOptions
from strategies.parts.participation import Intervals, check_estimator, inverse_rates


class FedAU(FlexibleStrategy):
    """p_k times the mean interval between participations: unbiased, with unknown participation rates."""

    suits = "unknown rates of participation that differ, when the server cannot keep a vector per client"
    options: FedAUOptions
    saved = ("intervals",)
    late_replies = "take"

    def setup(self) -> None:
        """Start with omega_k = 1."""
        self.intervals = Intervals(0 if self.options.estimator == "frequency" else self.options.cutoff)
        check_estimator(self.options.estimator, self.options, self.roster)

    def update(self, replies: Replies) -> None:
        """Weigh by the intervals before this round, which this round then ends."""
        clients, options = replies.clients, self.options
        p = self.roster.share(clients, options.weights)
        omega = inverse_rates(options.estimator, self.intervals, self.roster, replies, self.round)
        work = replies.work_factors(options.normalize)
        self.weights += options.server_rate * replies.weighted_sum(p * omega * work)
        self.intervals.observe(clients, self.round)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Count new members' intervals from this round on."""
        self.intervals.reset(arrived, self.round)


@dataclass(frozen=True, kw_only=True)
class FedAUOptions(FedAvgOptions):
    """Options of FedAU; the paper has `weights=uniform`.

    Attributes
    ----------
    cutoff
        K, the longest interval that counts for `fedau`; 0: none is cut. The paper advises 50. A client that
        takes part with a probability below 1 / K is then under-weighted.
    normalize
        Scale incomplete work by E / s_k; the paper has no incomplete clients, `false` takes it as it is.
    estimator
        omega_k: `fedau` estimates it; `frequency` is rounds as a member per participation, up to this one
        (Debiasing FedAvg); `known` is 1 / (probability of taking part), from the trace, where all available
        clients are asked; `none` is 1, the paper's baseline "average all".
    """

    cutoff: CountOrZero = 50
    normalize: bool = True
    estimator: Literal["fedau", "frequency", "known", "none"] = "fedau"
