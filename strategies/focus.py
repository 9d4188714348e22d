"""FOCUS: every step at the clients and at the server is by the newest gradients of all clients.

Ying, Li & Yang 2025, "Exact and Linear Convergence for Federated Learning under Arbitrary Client
Participation is Attainable", NeurIPS, Algorithm 1. With G_k the gradient that client k sent last (0 before),

    client k:  y := w,  s_k steps  y -= eta (g(y) - G_k),
    server:    G_k := the new gradient of k in S,    w := w - eta_g eta c sum_members p_k G_k.

At the optimum G_k is the client's gradient there: local steps stand still and the sum is 0, for any number of
steps and whoever takes part. The new gradient is the mean over the steps, -delta_k / (eta s_k) + G_k, or the
last one alone (the paper). The server keeps the n_k G_k, or with `memory=client` their sum, see
strategies/focus_client_memory.py. A late reply is a gradient of the round in which it arrives, by the rate of
its task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    CORRECTED,
    Clients,
    EmptyRound,
    FlexibleStrategy,
    LateReplies,
    MemoryOptions,
    Replies,
    Rule,
    SummedTable,
    Task,
    extend,
)
from strategies.fedavg import FedAvgOptions


class Focus(FlexibleStrategy):
    """Local steps y -= eta (g(y) - G_k), then w -= eta c sum_k p_k G_k, G_k each client's latest gradient."""

    suits = "many local steps and unknown participation, where FedAvg's drift and bias both matter"
    options: FocusOptions
    rule = CORRECTED
    rules: ClassVar[dict[str, Rule]] = {"mean": CORRECTED, "last": Rule("last-gradient")}
    saved: ClassVar[tuple[str, ...]] = ("latest", "sizes", "planned")
    late_replies: ClassVar[LateReplies] = "take"
    needs_steps = True
    orphans: float = 0.0  # sizes of clients whose n_k G_k is in the sum, and who are not in the roster

    def setup(self) -> None:
        """Start with G_k = 0."""
        self.rule = self.rules[self.options.gradient]
        self.latest = SummedTable(self.layout, self.options)  # n_k G_k
        self.sizes: NDArray[np.float64] = np.ones(0)  # that n_k, 1 for clients without a row, (N,)
        self.planned = float(
            self.options.local_steps
        )  # E, the mean of the last round if it differs by client

    def task(self, client: int) -> Task | None:
        """Return -G_k, if there is one."""
        if client not in self.latest:
            return None
        (row,) = self.latest.read(np.array([client]))
        return Task(arrays=((-row / self.sizes[client]).astype(self.layout.dtype),))

    def update(self, replies: Replies) -> None:
        """Overwrite the gradients of those who replied, and move by those of all."""
        clients, n = replies.clients, replies.sizes(self.options.weights)
        self.sizes = extend(self.sizes, int(clients.max()) + 1, 1)
        if self.options.gradient == "mean":
            kept = (n / self.sizes[clients])[:, None]  # n_k G_k of a client whose size has changed
            per_delta = (-n / (replies.learning_rate * replies.steps))[:, None]
            for _, delta, nG in self.latest.blocks(replies):
                nG *= kept
                delta *= per_delta
                nG += delta
        else:
            self.latest.replace(replies, -n / replies.learning_rate)
        self.sizes[clients] = n
        self.planned = float(replies.planned.mean())
        self.move()

    def empty_round(self) -> None:
        """Move by the old gradients, with `move`."""
        if self.options.empty == "move":
            self.move()

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Take the gradients of those who left out of the sum."""
        for client in left.tolist():
            self.latest.drop(client)

    def move(self) -> None:
        """Apply w -= eta_g eta c sum p_k G_k."""
        n = max(1.0, self.roster.total(self.options.weights))
        members = self.options.scale == "members"
        per_row = self.roster.num_contributors / n if members else self.planned / (n + self.orphans)  # c / n
        self.weights -= self.options.server_rate * self.learning_rate * per_row * self.latest.total


@dataclass(frozen=True, kw_only=True)
class FocusOptions(FedAvgOptions, MemoryOptions):
    """Options of FOCUS; the paper has `gradient=last`, `scale=members` and `weights=uniform`.

    Attributes
    ----------
    gradient
        G_k: `mean` of the gradients of a client's local steps, or the `last` of them, which the client's
        earlier steps only prepare (the paper).
    scale
        c: `steps` is E, so that a round goes as far as E steps of FedAvg; `members` is N, with which the mean
        over clients becomes the paper's sum.
    empty
        In a round without replies: `skip` rests (the authors' code), `move` applies the gradients once more.
    """

    gradient: Literal["mean", "last"] = "mean"
    scale: Literal["steps", "members"] = "steps"
    empty: EmptyRound = "skip"
