"""GHBM: momentum over a cycle of participation, inside the clients' local steps.

Zaccone, Karimireddy, Masone, Ciccone 2025, "Communication-Efficient Heterogeneous Federated Learning with
Generalized Heavy-Ball Momentum", TMLR, Algorithm 1. A client does its E local steps with momentum v,

    y := w,   y -= eta g(y) - (beta/E) v,   w := w + sum_S q_k delta_k,

where v is how far the model has come since an earlier one, the anchor, per round:

    window  GHBM       v = (w_t - w_{t-tau}) / tau     the last tau changes; 0 before there were as many
    own     LocalGHBM  v = C (w_t - what k was sent in its last accepted round)
    local   FedHBM     v = C (y - k's local model at the end of that round), with the current y.

With C the share of the clients that take part, 1 / C rounds lie between two of a client. In cycles of tau
rounds `own` is `window`. A client that does s < E steps adds s/E of the momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from strategies import (
    Clients,
    ClientTable,
    ClientWeights,
    Count,
    FlexibleStrategy,
    HeldModels,
    ModelWindow,
    NotNegative,
    Range,
    Replies,
    Rule,
    TableOptions,
    Task,
)
from strategies.core.parameters import FloatVector


class GHBM(FlexibleStrategy):
    """FedAvg with local steps y -= eta g(y) - (beta/E) v, v the model's change over a cycle, per round."""

    suits = "clients in turns, to get sooner to where FedAvg goes"
    options: GHBMOptions
    rule = Rule("heavy-ball", scalars=("strength",))
    saved = ("anchors",)

    def setup(self) -> None:
        """Start without anchors."""
        self.anchors: ModelWindow | HeldModels | ClientTable
        if self.options.anchor == "window":
            self.anchors = ModelWindow(self.layout, self.options.tau)
        elif self.options.anchor == "own":
            self.anchors = HeldModels(self.layout, np.zeros(len(self.roster), np.bool_), self.weights)
        else:
            self.anchors = ClientTable(self.layout, self.options)

    def update(self, replies: Replies) -> None:
        """Note the anchors of later rounds; then as in FedAvg."""
        if isinstance(self.anchors, ModelWindow):
            self.anchors.add(self.weights)
        elif isinstance(self.anchors, HeldModels):
            self.anchors.give(replies.clients, self.round, self.weights)
        else:
            self.anchors.write(replies.clients, np.array(replies.vectors))
        self.weights += replies.weighted_sum(replies.mean_coefficients(self.options.weights))

    def empty_round(self) -> None:
        """Move the window on, if rounds count."""
        if isinstance(self.anchors, ModelWindow) and self.options.count == "rounds":
            self.anchors.add(self.weights)

    def shared_task(self) -> Task:
        """Return the momentum, where it is the same for all clients."""
        nothing = Task(scalars={"strength": 0.0})
        if not isinstance(self.anchors, ModelWindow) or self.options.local_epochs:
            return nothing
        return self._momentum(self.anchors.oldest, self.options.local_steps) or nothing

    def task(self, client: int) -> Task | None:
        """Return the momentum of one client; None: it has none of its own."""
        steps = int(self.options.planned_steps(int(self.roster.num_examples[client])))
        if isinstance(self.anchors, ModelWindow):
            return self._momentum(self.anchors.oldest, steps) if self.options.local_epochs else None
        if client not in self.anchors:
            return None
        if isinstance(self.anchors, HeldModels):
            return self._momentum(self.anchors.of(client).vector, steps)
        return self._momentum(self.anchors.read(np.array([client]))[0], steps)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Forget the anchors of those who left."""
        if not isinstance(self.anchors, ModelWindow):
            for client in filter(self.anchors.__contains__, left.tolist()):
                self.anchors.drop(client)

    def on_restart(self) -> None:
        """Forget the anchors: the way from them is no momentum of the model to start from."""
        self.setup()

    def _momentum(self, anchor: FloatVector | None, steps: int) -> Task | None:
        """Return -(beta/E) v / eta as a correction of gradients: with `local`, the part of y - w by strength.

        None: there is no anchor, or no size of the client by which to know its steps.
        """
        if anchor is None or not steps:
            return None
        per_round = 1 / self.options.tau if self.options.anchor == "window" else self.options.share  # of v
        strength = -self.options.beta * per_round / (self.learning_rate * steps)
        direction = (strength * (self.weights - anchor)).astype(self.layout.dtype)
        in_step = strength if self.options.anchor == "local" else 0.0
        return Task(arrays=(direction,), scalars={"strength": in_step})


@dataclass(frozen=True, kw_only=True)
class GHBMOptions(TableOptions):
    """Options of GHBM.

    Attributes
    ----------
    anchor
        What the momentum is measured from: `window` the model of tau changes ago (GHBM), `own` the model that
        the client was sent last (LocalGHBM), `local` the client's own model at the end of its last round
        (FedHBM), for which the server keeps a vector per client.
    tau
        Rounds of a cycle, with `window`: the period of participation, or 1 / C.
    share
        C, the share of the clients that take part in a round, with `own` and `local`.
    beta
        Share of the momentum v that is added in a round; FedHBM has 1.
    count
        What tau counts: `changes` of the model, or `rounds`, also those without replies.
    weights
        `n` weights clients by their examples (the authors' code), `uniform` all alike.
    """

    anchor: Literal["window", "own", "local"] = "window"
    tau: Count = 10
    share: Annotated[float, Range(above=0, most=1)] = 0.1
    beta: NotNegative = 0.9
    count: Literal["changes", "rounds"] = "changes"
    weights: ClientWeights = "n"
