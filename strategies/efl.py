"""EFL: elastic local objectives, and updates compressed to ternary vectors in both directions.

Ma et al., "EFL: Elastic Federated Learning on Non-IID Data", Algorithms 1 and 2. A client does s_k steps
y -= eta (g(y) + lambda (U o y - V)) from y = w, and with ST as in fedtide/base/contract/ternary.py

    D := R_k + y - w,   sent_k := ST(D),   R_k := D - sent_k,   u_k := diag I(y),   v_k := u_k o y;
    A := RG + sum_S (E p_k / s_k) sent_k,   out := ST(A),   RG := A - out,   w := w + out,
    U := sum_S u_k,   V := sum_S v_k.

Where this differs from the text of Algorithm 1 (`apply=full`): there the server moves by A itself and the
clients by ST(A), so that RG is applied again in every round, and the server's model drifts away from the
clients'. Here both have the same w, and a client that missed rounds simply gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from flwr.common import Parameters, Scalar
from numpy.typing import NDArray

from fedtide.base.contract.ternary import Rounding, Ties, kept, ternary
from strategies import (
    Clients,
    CountOrZero,
    FlexibleStrategy,
    LossTracker,
    NotNegative,
    Range,
    Replies,
    Rule,
    Sent,
    Task,
    Vector,
)
from strategies.parts.abandoning import AbandonmentOptions, judge
from strategies.parts.availability import Availability
from strategies.schemes import scheme_c


class EFL(FlexibleStrategy):
    """Ternary updates with error feedback, and a Fisher-weighted pull towards the other clients' models."""

    suits = "slow uplinks: two bits a weight"
    options: EFLOptions
    rule = Rule(
        "elastic",
        scalars=("lambda", "compress", "kept", "ties", "fisher-batches"),
        remembers=True,  # R_k
        sends="packed",
        extra=2,  # u_k and v_k
    )
    takes_layers = takes_initial_model = False  # its D is what the clients' residuals are about
    saved = ("residual", "precision", "weighted", "drift", "availability", "losses")

    def setup(self) -> None:
        """Start with RG = U = V = 0."""
        self.kept = kept(self.layout.size, self.options.sparsity, self.options.rounding)  # k
        self.residual: Vector = np.zeros(self.layout.size)  # RG
        self.precision: Vector = np.zeros(self.layout.size)  # U
        self.weighted: Vector = np.zeros(self.layout.size)  # V
        self.drift: Vector = np.zeros(self.layout.size)  # server's model - clients' model, with `apply=full`
        self.availability, self.losses = Availability(), LossTracker()  # for `abandon`

    def update(self, replies: Replies) -> None:
        """Algorithm 1 with the coefficients E p_k / s_k of section 4.2."""
        if self.options.abandon == "auto":
            self.losses.update(replies)
        shares = self.roster.share(replies.clients)
        p = scheme_c(shares, replies.steps, replies.planned, self.roster.num_contributors)
        self._move(replies.ordered_sum(p))
        self._forget_elastic_term()
        for u, v in filter(None, replies.extra):
            self.precision += u
            self.weighted += v
        self.report.measured["fisher_bytes_up"] = sum(a.nbytes for extra in replies.extra for a in extra)

    def _move(self, change: Vector) -> None:
        """Send ST(A) and hold back the rest of A = RG + change: nothing is lost, only postponed."""
        if not self.options.compress:
            self.weights += change
            return
        A = self.residual + change
        out = ternary(A, self.kept, self.options.ties)
        self.residual = A - out
        self.weights += out
        if self.options.apply == "full":
            self.drift = self.drift + self.residual

    def empty_round(self) -> None:
        """Apply what was held back, with `literal`; drop an elastic term with which all clients diverged."""
        if self.report.diverged and self.precision.any():
            self._forget_elastic_term()
            reason = "all clients diverged; a smaller elasticity may help"
            self.report.events.append({"event": "elastic term dropped", "reason": reason})
        if self.options.empty == "literal":
            self._move(np.zeros(self.layout.size))
            self._forget_elastic_term()

    def _forget_elastic_term(self) -> None:
        self.precision, self.weighted = np.zeros((2, self.layout.size))

    def shared_task(self) -> Task:
        """Return U and V, once there are any, and the options of the client's part."""
        known = (self.precision, self.weighted) if self.precision.any() else ()
        return Task(
            arrays=tuple(vector.astype(self.layout.dtype) for vector in known),
            scalars={
                **super().shared_task().scalars,
                "lambda": self.options.elasticity,
                "kept": self.kept,
            },
        )

    def check(self, sent: Sent, extra: Sequence[NDArray[np.floating]]) -> None:
        """Refuse Fisher information that is not positive."""
        if extra and (extra[0] < 0).any():
            raise ValueError("negative Fisher information")

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate the server's model, where it is not that of the clients."""
        if self.options.apply == "full":
            parameters = self.wire.pack(self.weights + self.drift, self.buffers)
        return super().evaluate(server_round, parameters)

    def select(self, available: Clients) -> Clients:
        """Abandon the client that is away most, where that pays, and choose among the others."""
        if self.options.abandon == "auto":
            self.availability.observe(available, self.roster.member)
            judged = judge(self.availability, self.roster, self.losses, self.round, self.options)
            if judged is not None:
                self.membership.abandon(*judged)
                available = available[available != judged[0]]
        return super().select(available)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Forget the losses of those who left."""
        for client in left.tolist():
            self.losses.forget(client)


@dataclass(frozen=True, kw_only=True)
class EFLOptions(AbandonmentOptions):
    """Options of EFL.

    Attributes
    ----------
    sparsity
        q, the share of entries that a compressed update keeps; the paper has 0.3 (EMNIST, CIFAR-100) and 0.6
        (Shakespeare). It counts over the whole model, not tensor by tensor.
    elasticity
        lambda; the paper gives no value. U and V are sums, as in the paper, so that the term grows with the
        number of clients in a round, and too much of it diverges: on digits with 20 clients, 3 is good and 10
        too much. With 0 no Fisher information is computed or sent.
    compress
        `false` sends local weights as FedAvg does, which the server applies as they are.
    ties
        Entries of equal size: `exact` keeps k entries, `paper` and `mean` all, see
        `fedtide.base.contract.ternary.ternary`.
    rounding
        What k is where n q is not whole: `floor` or `ceil`.
    apply
        `ternary` moves the global model by ST(A). `full` is Algorithm 1 as printed: the clients' model moves
        by ST(A), that of the server by A. The server's is evaluated, the clients' is what a run ends with.
    empty
        In a round without replies: `skip` rests, `literal` applies ST(RG) and forgets U and V.
    fisher_batches
        From how many batches a client estimates its Fisher information; 0: from all its examples.
    """

    sparsity: Annotated[float, Range(above=0, most=1)] = 0.3
    elasticity: NotNegative = 1.0
    compress: bool = True
    ties: Ties = "exact"
    rounding: Rounding = "floor"
    apply: Literal["ternary", "full"] = "ternary"
    empty: Literal["skip", "literal"] = "skip"
    fisher_batches: CountOrZero = 4
