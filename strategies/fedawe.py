"""FedAWE: clients echo their update for every round that they missed, and mix their models as they meet.

Xiang et al. 2024, "Efficient Federated Learning against Heterogeneous and Non-stationary Client
Unavailability", NeurIPS, Algorithm 1. Client k starts from x_k, the aggregate of the last round T_k in which
it took part, at first T_k = 0 and the initial weights. With delta_k the difference to x_k,

    x := (1/|S|) sum_S x_k + eta_g (1/|S|) sum_S (t - T_k) delta_k,     x_k := x, T_k := t  for k in S.

The echo, t - T_k times the update, makes up for the rounds that a client missed; as only those in S get x,
they mix in older models later ("implicit gossip"). The mean of all members' x_k moves by (eta_g / N) sum_S
(t - T_k) delta_k. The server keeps the aggregates that are some member's x_k. A late reply is a participation
in the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    MAX_RESULT,
    Clients,
    ClientWeights,
    FlexibleStrategy,
    HeldModels,
    NotNegative,
    Replies,
    ServerRateOptions,
    Task,
    extend,
    largest,
)


class FedAWE(FlexibleStrategy):
    """Clients resume from the model of their last round; their update counts once for every round since."""

    suits = "rates of participation that change with time, when the server cannot keep a vector per client"
    options: FedAWEOptions
    saved = ("models", "last", "total")
    takes_layers = takes_initial_model = False  # there is no model that all clients start from
    late_replies = "take"

    def setup(self) -> None:
        """Let all members hold the initial weights, with T_k = 0."""
        members = self.roster.contributors
        self.models = HeldModels(self.layout, members, self.weights)  # x_k
        self.last: NDArray[np.int64] = np.zeros(len(self.roster), np.int64)  # T_k
        self.total = self.models.sum(np.flatnonzero(members))  # of all members' x_k

    def task(self, client: int) -> Task:
        """Have a client start from x_k; from the newest aggregate, if it has none."""
        return Task(weights=self.models.of(client))

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 9 to 13."""
        clients, options = replies.clients, self.options
        echo = (self.round - self.last[clients]) * replies.work_factors(options.normalize)
        echo *= self.roster.relative_share(clients, options.weights)
        sum_x = self.models.sum(clients)  # sum_S x_k
        step = self._clipped(replies.weighted_sum(echo / len(replies)))
        x = sum_x / len(replies) + options.server_rate * step
        if not largest(x) <= MAX_RESULT:  # the base discards it: all keep their x_k
            self.weights = x
            return
        self.models.give(clients, self.round, x)
        self.last[clients] = self.round
        self.total += self.models.sum(clients) - sum_x
        self.weights = x if options.evaluate == "newest" else self.total / self.roster.num_contributors

    def on_outside_change(self, change: NDArray[np.float64]) -> None:
        """Change all x_k alike, and so their mean."""
        self.models.shift(change)
        self.total += self.roster.num_contributors * change

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Take the x_l of those who left out of the mean; new members get the newest x, with T_l = t - 1."""
        for client in left.tolist():
            self.total -= self.models.of(client).vector
            self.models.drop(client)
        self.last = extend(self.last, int(arrived.max(initial=-1)) + 1, 0)
        self.last[arrived] = self.round - 1
        for client in arrived.tolist():
            self.models.give_newest(client)
            self.total += self.models.of(client).vector

    def _clipped(self, step: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale the mean echoed update down to norm `clip`, if it is longer."""
        norm = float(np.linalg.norm(step))
        return step * (self.options.clip / norm) if 0 < self.options.clip < norm else step


@dataclass(frozen=True, kw_only=True)
class FedAWEOptions(ServerRateOptions):
    """Options of FedAWE.

    Attributes
    ----------
    weights
        `uniform` counts members alike (the paper); `n` multiplies the echo by N p_k, mixing stays uniform.
    normalize
        Scale incomplete work by E / s_k; `false` takes it as it is, as echoes of few steps can be long.
    clip
        Largest norm of a round's mean echoed update, 0.5 in the authors' code; 0: none. Without it a client
        that is away for long can make the model diverge: gap x rate x steps x curvature must stay below 2.
    evaluate
        The global weights are the `mean` of all members' x_k (the paper's theory, the authors' code), or the
        `newest` aggregate.
    """

    weights: ClientWeights = "uniform"
    normalize: bool = False
    clip: NotNegative = 0.0
    evaluate: Literal["mean", "newest"] = "mean"
