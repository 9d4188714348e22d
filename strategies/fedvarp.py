"""FedVARP and FedStale: the latest update of every client removes the variance of partial participation.

Jhunjhunwala et al. 2022, "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated
Learning", UAI; Rodio & Neglia 2024, "FedStale: Leveraging Stale Client Updates in Federated Learning". With
y_k the latest update of client k before the round (0 if there is none),

    v := sum_{k in S} a_k u_k + beta (sum_members p_k y_k - sum_{k in S} a_k y_k),   w := w + eta_g v,

and y_k := u_k for k in S.
FedVARP has beta = 1 and a_k = p_k / sum_S p. FedStale mixes stale updates in with a beta below 1, and a_k =
p_k omega_k with FedAU's omega_k. With beta = 0 they are FedAvg and FedAU; with all members there, FedAvg.
A late reply is the u_k of the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    Clients,
    CountOrZero,
    EmptyRound,
    FlexibleStrategy,
    Replies,
    Share,
    SummedTable,
    TableOptions,
    Units,
    extend,
)
from strategies.fedavg import FedAvgOptions
from strategies.parts.participation import Intervals, check_estimator, inverse_rates


class FedVARP(FlexibleStrategy):
    """Mean update of those who replied, corrected by the latest updates of all: less variance."""

    suits = "few replies in a round, and a constant learning rate"
    options: FedVARPOptions
    saved = ("latest", "sizes", "intervals")
    late_replies = "take"

    def setup(self) -> None:
        """Start with y_k = 0 and omega_k = 1."""
        self.latest = SummedTable(self.layout, self.options)  # n_k y_k
        self.sizes: NDArray[np.int64] = np.ones(0, np.int64)  # that n_k, for every client with a row
        self.intervals = Intervals(self.options.cutoff)
        if self.options.agg == "prob":
            check_estimator(self.options.estimator, self.options, self.roster)

    def update(self, replies: Replies) -> None:
        """Move by v, and set y_k := u_k, for some of the M weights at a time."""
        clients, options = replies.clients, self.options
        self.sizes = extend(self.sizes, int(clients.max()) + 1, 1)
        n, old_n = replies.sizes(options.weights), self.sizes[clients]
        a = self._coefficients(replies)
        growth = (n - old_n) / self.roster.total(options.weights)  # of p_k since y_k
        now, then = self._units(self.learning_rate), self._units(replies.learning_rate)
        work = replies.work_factors(options.normalize)
        mean, v = self._mean_of_latest(), np.empty(self.layout.size)
        for at, delta, ny in self.latest.blocks(replies):
            fresh = (a * work * (now / then)) @ delta  # sum_S a_k u_k
            stale = mean[at] - ((a - growth) / old_n) @ ny  # sum_members p_k y_k - sum_S a_k y_k
            v[at] = fresh + now * options.beta * stale
            np.multiply(delta, (work * n / then)[:, None], out=ny)  # y_k := u_k
        self.weights += options.server_rate * v
        self.sizes[clients] = n
        self.intervals.observe(clients, self.round)

    def empty_round(self) -> None:
        """Move by the stale updates, with `move`."""
        options = self.options
        if options.empty == "move":
            rate = options.server_rate * self._units(self.learning_rate) * options.beta
            self.weights += rate * self._mean_of_latest()

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Count new members' intervals from this round on, with y_l = 0; forget the y_l of those who left."""
        self.intervals.reset(arrived, self.round)
        for client in left.tolist():
            self.latest.drop(client)

    def _coefficients(self, replies: Replies) -> NDArray[np.float64]:
        """a_k of those who replied, shape (K,)."""
        options, clients = self.options, replies.clients
        if options.agg == "mean":
            return replies.mean_coefficients(options.weights)
        omega = inverse_rates(options.estimator, self.intervals, self.roster, replies, self.round)
        return self.roster.share(clients, options.weights) * omega

    def _units(self, rate: Any) -> Any:
        """Return the change of the weights that one unit of u_k stands for, at some learning rate."""
        return -rate if self.options.units == "gradient" else 1.0

    def _mean_of_latest(self) -> NDArray[np.float64]:
        """sum_members p_k y_k, shape (M,)."""
        total = self.roster.total(self.options.weights)
        mean: NDArray[np.float64] = self.latest.total / max(1.0, total)
        return mean


class FedStale(FedVARP):
    """FedVARP with weight beta on stale updates, and FedAU's weights p_k omega_k for those who replied."""

    suits = "rates of participation that differ much: between FedAU and FedVARP"
    options: FedStaleOptions


@dataclass(frozen=True, kw_only=True)
class FedVARPOptions(FedAvgOptions, TableOptions):
    """Options of FedVARP and FedStale, which differ in their defaults; the papers have `weights=uniform`.

    Attributes
    ----------
    beta
        Weight of the stale updates, 0 to 1.
    agg
        a_k: `mean` divides by those who replied, `prob` multiplies p_k by FedAU's omega_k.
    units
        `gradient` keeps sums of gradients and applies them with the current rate, `update` keeps changes of
        the weights; the same where the rate is constant.
    normalize
        Scale incomplete work by E / s_k; `false` takes it as it is.
    estimator, cutoff
        Of omega_k, see FedAU; 0: no interval is cut.
    empty
        In a round without replies: `skip` rests, `move` applies the stale updates (the formula).
    """

    beta: Share = 1.0
    agg: Literal["mean", "prob"] = "mean"
    units: Units = "gradient"
    normalize: bool = True
    estimator: Literal["fedau", "known", "none"] = "fedau"
    cutoff: CountOrZero = 0
    empty: EmptyRound = "skip"


@dataclass(frozen=True, kw_only=True)
class FedStaleOptions(FedVARPOptions):
    """Options of FedStale.

    Attributes
    ----------
    beta
        Weight of the stale updates, 0 to 1.
    agg
        a_k: `prob` multiplies p_k by FedAU's omega_k, `mean` divides by those who replied.
    """

    beta: Share = 0.5
    agg: Literal["prob", "mean"] = "prob"
