"""FedVARP and FedStale: the latest update of every client removes the variance of partial participation.

Jhunjhunwala et al. 2022, "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated
Learning", UAI; Rodio & Neglia 2024, "FedStale: Leveraging Stale Client Updates in Federated Learning". With
y_k the latest update of client k before the round (0 if there is none),

    v := beta sum_members p_k y_k + sum_{k in S} a_k (u_k - beta y_k),   w := w + eta_g v,   y_k := u_k.

FedVARP has beta = 1 and a_k = p_k / sum_S p. FedStale mixes stale updates in with a beta below 1, and a_k =
p_k omega_k with FedAU's omega_k. With beta = 0 they are FedAvg and FedAU; with all members there, FedAvg.
A late reply is the u_k of the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import CountOrZero, Positive, Share
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.table import SummedTable, TableOptions, extend
from strategies.parts.participation import Intervals, check_estimator, inverse_rates


class FedVARP(FlexibleStrategy):
    """Mean update of those who replied, corrected by the latest updates of all: less variance."""

    suits = "few replies in a round, and a constant learning rate"
    options: FedVARPOptions
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "latest", "scale", "intervals")
    late_replies = "take"

    def setup(self) -> None:
        """Start with y_k = 0 and omega_k = 1."""
        self.latest = SummedTable(self.layout, self.options)  # n_k y_k, whose sum is n sum_k p_k y_k
        self.scale: NDArray[np.int64] = np.ones(0, np.int64)  # that n_k, for every client with a row
        self.intervals = Intervals(self.options.cutoff)
        if self.options.agg == "prob":
            check_estimator(self.options.estimator, self.options, self.roster)

    def update(self, replies: Replies) -> None:
        """Move by v, made of the old y_k; then replace them."""
        clients, options = replies.clients, self.options
        gradient = (
            options.units == "gradient"
        )  # delta_k is `unit` times u_k, at the rate of its task `of_task`
        beta, unit = options.beta, -self.learning_rate if gradient else 1.0
        of_task = -replies.learning_rate if gradient else np.ones(len(replies))
        work = replies.work_factors(options.normalize)
        self.scale = extend(self.scale, int(clients.max()) + 1, 1)
        old, new = self.scale[clients], replies.sizes(options.weights)
        a, stale = self._coefficients(replies), self._mean_of_latest()
        at_old = (a - (new - old) / self._total()) / old  # where n_k has changed, so has p_k of the old y_k
        v = np.empty(self.layout.size)
        for at, delta, row in self.latest.blocks(replies):
            v[at] = (a * work * (unit / of_task)) @ delta + unit * beta * (stale[at] - at_old @ row)
            np.multiply(delta, (work * new / of_task)[:, None], out=row)
        self.weights += options.server_rate * v
        self.scale[clients] = new
        self.intervals.observe(clients, self.round)

    def empty_round(self) -> None:
        """Move by the old updates, with `move`."""
        options = self.options
        if options.empty == "skip":
            return
        unit = -self.learning_rate if options.units == "gradient" else 1.0
        self.weights += options.server_rate * unit * options.beta * self._mean_of_latest()

    def on_arrival(self, client: int) -> None:
        """Start a new member with y_l = 0; count its intervals from this round on."""
        self.intervals.reset(client, self.round)

    def on_departure(self, client: int, keep: bool) -> None:
        """Forget y_l, unless the client stays in the objective."""
        if not keep:
            self.latest.drop(client)

    def _coefficients(self, replies: Replies) -> NDArray[np.float64]:
        """a_k of those who replied, shape (K,)."""
        n = replies.sizes(self.options.weights)
        if self.options.agg == "mean":
            return n / float(n.sum())
        estimator, clients = self.options.estimator, replies.clients
        return n / self._total() * inverse_rates(estimator, self.intervals, self.roster, clients, self.round)

    def _total(self) -> float:
        """n of all members, or N with uniform weights."""
        roster = self.roster
        return float(roster.num_contributors) if self.options.weights == "uniform" else roster.total_size

    def _mean_of_latest(self) -> NDArray[np.float64]:
        """sum_members p_k y_k, shape (M,)."""
        mean: NDArray[np.float64] = self.latest.total / max(1.0, self._total())
        return mean


@dataclass(frozen=True, kw_only=True)
class FedVARPOptions(TableOptions):
    """Options of FedVARP and FedStale, which differ in their defaults.

    Attributes
    ----------
    beta
        Weight of the stale updates, 0 to 1.
    agg
        a_k: `mean` divides by those who replied, `prob` multiplies p_k by FedAU's omega_k.
    weights
        `n` weights members by their examples; `uniform` counts all alike (FedVARP's paper).
    units
        `gradient` keeps sums of gradients and applies them with the current rate, `update` keeps changes of
        the weights; the same where the rate is constant.
    normalize
        Scale incomplete work by E / s_k; `false` takes it as it is.
    estimator, cutoff
        Of omega_k, see FedAU; 0: no interval is cut.
    empty
        In a round without replies: `skip` rests, `move` applies the stale updates (the formula).
    server_rate
        eta_g.
    """

    beta: Share = 1.0
    agg: Literal["mean", "prob"] = "mean"
    weights: Literal["n", "uniform"] = "n"
    units: Literal["gradient", "update"] = "gradient"
    normalize: bool = True
    estimator: Literal["fedau", "known", "none"] = "fedau"
    cutoff: CountOrZero = 0
    empty: Literal["skip", "move"] = "skip"
    server_rate: Positive = 1.0
