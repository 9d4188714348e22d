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
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import NotNegative, Positive
from strategies.core.decoding import MAX_RESULT, largest
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.models import ModelsInUse
from strategies.memory.table import extend


class FedAWE(FlexibleStrategy):
    """Clients go on from the model of their last round; their update counts once for every round since."""

    suits = "rates of participation that change with time, without memory for a table"
    options: FedAWEOptions
    saved: ClassVar[tuple[str, ...]] = (
        *FlexibleStrategy.saved,
        *("models", "newest", "held", "last", "total"),
    )
    takes_layers = False  # there is no model that all clients start from
    late_replies = "take"

    def setup(self) -> None:
        """Have all members hold the initial weights, with T_k = 0."""
        roster = self.roster
        self.models = ModelsInUse(self.layout)
        self.newest = 0  # round of the newest aggregate, which is kept even if no member holds it
        x = self.models.add(0, self.weights)
        self.models.hold(0, roster.num_contributors + 1)
        self.held: NDArray[np.int64] = np.where(roster.contributors, 0, -1)  # round of x_k, -1 without one
        self.last: NDArray[np.int64] = np.zeros(len(roster), np.int64)  # T_k
        self.total = roster.num_contributors * x.vector.astype(np.float64)  # sum of all members' x_k

    def start(self, client: int) -> FlatParameters:
        """Return x_k; the newest aggregate for a client that has none."""
        held = int(self.held[client]) if client < len(self.held) else -1
        return self.models[held if held >= 0 else self.newest]

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 9 to 13."""
        clients, options, t = replies.clients, self.options, self.round
        echo = (t - self.last[clients]) * replies.work_factors(options.normalize)
        if options.weights == "n":
            echo *= self.roster.num_contributors * self.roster.share(clients)
        rounds, counts = np.unique(self.held[clients], return_counts=True)
        met = np.zeros(self.layout.size)  # sum_S x_k
        for r, count in zip(rounds.tolist(), counts.tolist(), strict=True):
            x_k = self.models[r].vector
            met += x_k if count == 1 else count * x_k.astype(np.float64)
        step = self._clipped(replies.weighted_sum(echo / len(replies)))
        x = met / len(replies) + options.server_rate * step
        if not largest(x) <= MAX_RESULT:  # nobody could go on from it
            self.weights = x
            return
        for r, count in zip(rounds.tolist(), counts.tolist(), strict=True):
            self.models.release(r, count)
        model = self.models.add(t, x)
        self.models.hold(t, len(replies) + 1)
        self.models.release(self.newest, 1)
        self.newest = self.held[clients] = self.last[clients] = t
        self.total += len(replies) * model.vector.astype(np.float64) - met
        self.weights = x if options.evaluate == "newest" else self.total / self.roster.num_contributors

    def on_outside_change(self, change: NDArray[np.float64]) -> None:
        """Change all x_k alike, and so their mean."""
        self.models.shift(change)
        self.total += self.roster.num_contributors * change

    def on_arrival(self, client: int) -> None:
        """Give a new member the newest aggregate, with T_l = t - 1."""
        self.held, self.last = extend(self.held, client + 1, -1), extend(self.last, client + 1, 0)
        self.held[client], self.last[client] = self.newest, self.round - 1
        self.models.hold(self.newest, 1)
        self.total += self.models[self.newest].vector

    def on_departure(self, client: int, keep: bool) -> None:
        """Take x_l out of the mean, unless the client stays in the objective."""
        if not keep:
            held = int(self.held[client])
            self.total -= self.models[held].vector
            self.models.release(held, 1)
            self.held[client] = -1

    def _clipped(self, step: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale the mean echoed update down to norm `clip`, if it is longer."""
        norm = float(np.linalg.norm(step))
        return step * (self.options.clip / norm) if 0 < self.options.clip < norm else step


@dataclass(frozen=True, kw_only=True)
class FedAWEOptions(Options):
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
    server_rate
        eta_g.
    """

    weights: Literal["uniform", "n"] = "uniform"
    normalize: bool = False
    clip: NotNegative = 0.0
    evaluate: Literal["mean", "newest"] = "mean"
    server_rate: Positive = 1.0
