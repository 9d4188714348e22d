"""FedBuff: late replies count, the less the more the weights have changed since their task.

Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", AISTATS. All replies that
arrive in a round, on time or late, go into a buffer. As soon as it holds B of them or more,

    w := w + eta_g sum_{k in buffer} q_k s_k delta_k,    q_k = 1 / |buffer|,    s_k = (1 + lag_k)^-a,

and it is emptied; until then the weights stay. lag_k counts the changes of the weights between the client's
task and the arrival of its reply. The paper updates at every B-th reply, as do rounds of event time that end
at each reply; otherwise a round makes at most one update, of all replies that have arrived.

With `discount=refl`, late replies count the more, the more they differ from those without lag (Abdelmoniem et
al. 2023, "REFL: Resource-Efficient Federated Learning", EuroSys): s_k = 1 without lag, else

    s_k = (1 - beta) / (1 + lag_k) + beta (1 - exp(-L_k / max L) / c),    L_k = |delta_k - F|^2,

with F the mean of those without lag, and L_k / max L = 1 where there are none. The step is divided by the sum
of the q_k s_k. With `rescale`, each delta_k is scaled by the duration of its task, see
`strategies.parts.rescaling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    Clients,
    ClientWeights,
    Count,
    NotNegative,
    Range,
    Replies,
    ServerRateOptions,
    Share,
    Stateful,
    Vector,
)
from strategies.parts.rescaling import Rescaling, RescalingOptions


class FedBuff(Rescaling):
    """Takes late replies with less weight, the older they are, and moves when it has B replies."""

    suits = "slow clients, whose late replies should not be lost"
    options: FedBuffOptions
    saved = ("buffer",)

    def setup(self) -> None:
        """Start with an empty buffer."""
        super().setup()
        self.buffer = Buffer(self.layout.size)

    def update(self, replies: Replies) -> None:
        """Move by the replies in the buffer and those of this round, if these are enough."""
        options, buffer = self.options, self.buffer
        q = replies.sizes(options.weights)
        work = replies.work_factors(options.normalize) * self.rescaled(replies)
        if len(buffer) + len(replies) < options.buffer:
            buffer.add(replies.clients, q, replies.lag, replies.deltas * work[:, None])
            return
        lag, q = np.concatenate([buffer.lags, replies.lag]), np.concatenate([buffer.weights, q])
        refl = options.discount == "refl"
        s = self._refl(lag, work, replies) if refl else np.power(1.0 + lag, -options.staleness)
        D = self._sum(q * s, work, replies)
        self.weights += options.server_rate / (q @ s if refl or options.renorm else q.sum()) * D
        self.lag = int(lag.max())
        self.buffer = Buffer(self.layout.size)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Drop the waiting replies of those who left."""
        super().members_changed(arrived, left)
        self.buffer.drop(left)

    def on_restart(self) -> None:
        """Drop all waiting replies: like those that still are under way, they are about another model."""
        self.buffer = Buffer(self.layout.size)

    def _sum(self, coefficients: Vector, work: Vector, replies: Replies) -> Vector:
        """Sum of the updates in the buffer and then of those of this round, with these coefficients."""
        waiting = len(self.buffer)
        new = replies.weighted_sum(coefficients[waiting:] * work)
        return coefficients[:waiting] @ self.buffer.updates + new if waiting else new

    def _refl(self, lag: NDArray[np.int64], work: Vector, replies: Replies) -> Vector:
        """s_k of REFL, of the replies in the buffer and then of those of this round."""
        beta, late = self.options.beta, lag > 0
        compared = late.any() and not late.all()
        L = self._deviations(~late, work, replies) if compared else np.ones(len(lag))
        differs = L / (L[late].max(initial=0) or 1)
        s = (1 - beta) / (1 + lag) + beta * (1 - np.exp(-differs) / self.options.c)
        return np.where(late, s, 1.0)

    def _deviations(self, fresh: NDArray[np.bool_], work: Vector, replies: Replies) -> Vector:
        """L_k, F being the mean of those that are fresh."""
        F, L = self._sum(fresh / fresh.sum(), work, replies), np.zeros(len(fresh))
        waiting = len(self.buffer)
        L[:waiting] = np.square(self.buffer.updates - F).sum(axis=1)
        for at, deltas in replies.blocks():
            L[waiting:] += np.square(deltas * work[:, None] - F[at]).sum(axis=1)
        return L


class Buffer(Stateful):
    """Replies that wait for an update of the weights: a number, or a row of M, for each."""

    saved = ("clients", "weights", "lags", "updates")

    def __init__(self, size: int) -> None:
        self.clients: NDArray[np.intp] = np.empty(0, np.intp)
        self.weights: Vector = np.empty(0)  # q_k before it is divided by the sum: n_k, or 1
        self.lags: NDArray[np.int64] = np.empty(0, np.int64)  # the weights stay while replies wait
        self.updates: NDArray[np.float64] = np.empty(
            (0, size)
        )  # delta_k, scaled with `normalize` and `rescale`

    def __len__(self) -> int:
        return len(self.clients)

    def add(self, *columns: NDArray[Any]) -> None:
        """Add the replies of a round, an array for each attribute."""
        for name, new in zip(self.saved, columns, strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def drop(self, clients: Clients) -> None:
        """Drop the replies of some clients."""
        others = ~np.isin(self.clients, clients)
        for name in self.saved:
            setattr(self, name, getattr(self, name)[others])


@dataclass(frozen=True, kw_only=True)
class FedBuffOptions(ServerRateOptions, RescalingOptions):
    """Options of FedBuff.

    Attributes
    ----------
    buffer
        B, the replies that an update needs.
    discount
        s_k of late replies: `poly` is (1 + lag)^-a; `refl` is REFL's, whose sum the step is divided by.
    staleness
        a of `poly`; 0: old replies count like new ones.
    beta, c
        Weight of the deviation in `refl`, and how little a reply counts for it that does not deviate (10 in
        the authors' code).
    weights
        q_k: `uniform` (the paper), or `n` for n_k / sum n.
    renorm
        Divide by the sum of the discounted q_k, so that old replies do not shorten the step.
    normalize
        Scale incomplete work by E / s_k.
    """

    buffer: Count = 10
    discount: Literal["poly", "refl"] = "poly"
    staleness: NotNegative = 0.5
    beta: Share = 0.35
    c: Annotated[float, Range(least=1)] = 1.0
    weights: ClientWeights = "uniform"
    renorm: bool = False
    normalize: bool = False
