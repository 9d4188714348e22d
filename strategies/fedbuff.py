"""FedBuff: late replies count, the less the more the weights have changed since their task.

Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", AISTATS, here in rounds. All
replies that arrive in a round, on time or late, go into a buffer. As soon as it holds B of them or more,

    w := w + eta_g sum_{k in buffer} q_k (1 + lag_k)^-a delta_k,    q_k = 1 / |buffer|,

and it is emptied; until then the weights stay. lag_k counts the changes of the weights between the client's
task and the arrival of its reply. The paper updates at every B-th reply; here a round makes at most
one update, of all replies that have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, NotNegative, Range
from strategies.core import FlexibleStrategy, Replies, Sent, ServerRateOptions, Stateful


class FedBuff(FlexibleStrategy):
    """Takes late replies with less weight, the older they are, and moves when it has B replies."""

    suits = "slow clients, whose late replies should not be lost"
    options: FedBuffOptions
    saved = ("buffer",)
    late_replies = "take"

    def setup(self) -> None:
        """Start with an empty buffer."""
        self.buffer = Buffer(self.layout.size)

    def check(self, sent: Sent, extra: Sequence[NDArray[np.floating]]) -> None:
        """Refuse a reply with a larger lag than `max-lag`."""
        lag, limit = self.version - sent.version, self.options.max_lag
        if 0 <= limit < lag:
            raise ValueError(f"late reply of round {sent.round}: its lag is {lag}, max-lag is {limit}")

    def update(self, replies: Replies) -> None:
        """Move by the replies in the buffer and those of this round, if these are enough."""
        options, buffer = self.options, self.buffer
        q = replies.sizes(options.weights)
        work = replies.work_factors(options.normalize)
        discount = np.power(1.0 + replies.lag, -options.staleness)
        if len(buffer) + len(replies) < options.buffer:
            buffer.add(replies.clients, q, discount, replies.deltas * (discount * work)[:, None])
            return
        D = buffer.weights @ buffer.updates + replies.weighted_sum(q * discount * work)
        total = buffer.weights.sum() + q.sum()
        if options.renorm:
            total = buffer.weights @ buffer.discounts + q @ discount
        self.weights += options.server_rate / total * D
        self.buffer = Buffer(self.layout.size)

    def on_departure(self, client: int, keep: bool) -> None:
        """Drop the waiting replies of a client that leaves the objective."""
        if not keep:
            self.buffer.drop(client)


class Buffer(Stateful):
    """Replies that wait for an update of the weights: a number, or a row of M, for each."""

    saved = ("clients", "weights", "discounts", "updates")

    def __init__(self, size: int) -> None:
        self.clients: NDArray[np.intp] = np.empty(0, np.intp)
        self.weights: NDArray[np.float64] = np.empty(0)  # q_k before it is divided by the sum: n_k, or 1
        self.discounts: NDArray[np.float64] = np.empty(0)  # (1 + lag_k)^-a
        self.updates: NDArray[np.float64] = np.empty((0, size))  # discounted

    def __len__(self) -> int:
        return len(self.clients)

    def add(self, *columns: NDArray[Any]) -> None:
        """Add the replies of a round, an array for each attribute."""
        for name, new in zip(self.saved, columns, strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def drop(self, client: int) -> None:
        """Drop the replies of a client."""
        others = self.clients != client
        for name in self.saved:
            setattr(self, name, getattr(self, name)[others])


@dataclass(frozen=True, kw_only=True)
class FedBuffOptions(ServerRateOptions):
    """Options of FedBuff.

    Attributes
    ----------
    buffer
        B, the replies that an update needs.
    staleness
        a of the discount (1 + lag)^-a; 0: old replies count like new ones.
    max_lag
        Replies with a larger lag are dropped; -1: none is.
    weights
        q_k: `uniform` (the paper), or `n` for n_k / sum n.
    renorm
        Divide by the sum of the discounted q_k, so that old replies do not shorten the step.
    normalize
        Scale incomplete work by E / s_k.
    """

    buffer: Count = 10
    staleness: NotNegative = 0.5
    max_lag: Annotated[int, Range(least=-1)] = -1
    weights: Literal["uniform", "n"] = "uniform"
    renorm: bool = False
    normalize: bool = False
