"""What to start from when the members change: a mixture of the models of earlier sets of members.

Chang et al. 2024, "Federated Learning with Dynamic Client Arrival and Departure: Convergence and Rapid
Adaptation via Initial Model Construction", arXiv 2410.05662. A *session* is the rounds between two changes of
the members. When it ends, those who are members now do V probe rounds of local SGD from a pilot model w_p, at
half the learning rate; their pseudo-gradient is G = x - w_p, x being what has become of it. With the W_i and
G_i of earlier sessions, their last models and pseudo-gradients,

    w := sum_i a_i W_i,   a = softmax(R similarity(G_i, G)),

and the method goes on from there. w stays where there is no earlier session. The rule of which changes are
large enough, `min_change`, is ours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, CountOrZero, Positive, Share, checked
from strategies import Layout, Replies, Roster, RoundReport, Vector
from strategies.core.layers import InitialModel
from strategies.core.parameters import combined_buffers

Phase = Literal["begin", "first", "probe", "train"]


class Mixture(InitialModel):
    """Base of the similarities: probes when the members have changed, and mixes earlier models.

    Parameters
    ----------
    layout, weights
        Of the tensors, and the initial ones, shape (M,).
    V
        Probe rounds after a change, in which the global model rests.
    R
        How much the most similar session is preferred.
    pilot
        w_p: `first`, the last model of the first session, which is not probed; or `initial`, the initial
        weights, from which the first session is probed too.
    keep
        The newest sessions that are remembered; 0: all.
    min_change
        Which share of the data, of members before or after, has to come or go for a session to end; the paper
        has 0.
    """

    saved = (
        *("phase", "since", "trained", "done", "members", "pilot", "x"),
        *("gradients", "models", "buffers"),
    )

    @checked
    def __init__(
        self,
        layout: Layout,
        weights: Vector,
        *,
        V: Count = 1,
        R: Positive = 10.0,
        pilot: Literal["first", "initial"] = "first",
        keep: CountOrZero = 0,
        min_change: Share = 0.5,
    ) -> None:
        self.V, self.R, self.first, self.keep, self.min_change = V, R, pilot == "first", keep, min_change
        self.layout = layout
        self.phase: Phase = "begin"
        self.done = 0  # probe rounds of this session
        self.members: NDArray[np.bool_] = np.zeros(0, bool)  # when the session began
        self.pilot: Vector = weights.copy()
        self.x: Vector = weights.copy()
        self.gradients: Vector = np.empty((0, layout.size))  # G_i
        self.models: Vector = np.empty((0, layout.size))  # W_i
        self.buffers: Vector = np.empty((0, 0))  # of W_i

    @abstractmethod
    def similarity(self, units: Vector, unit: Vector) -> Vector:
        """Return how similar unit vectors, shape (S, m), are to another one, shape (m,)."""

    def begin(self, server_round: int, roster: Roster, weights: Vector, buffers: Vector) -> None:
        """Begin a session if the members have changed; a schedule that restarts begins with the probe."""
        if self.phase == "begin":
            self.phase, self.members = "first" if self.first else "probe", roster.contributors
        elif self._changed(roster):
            self.members = roster.contributors
            if self.trained or self.phase != "first":
                self._remember(weights, buffers)
                self.phase, self.x, self.done, self.trained = "probe", self.pilot, 0, False
                self.since = server_round
        if self.phase == "probe":
            roster.shift = server_round - 1
        self.weights = self.x if self.phase == "probe" else None
        self._round = server_round

    def end(
        self, replies: Replies, weights: Vector, buffers: Vector, report: RoundReport
    ) -> tuple[Vector, Vector] | None:
        """x := x + sum_S q_k (E_k / s_k) delta_k, q_k by n; after V such rounds, mix the earlier models."""
        report.measured["probe"] = self.done + 1
        if not len(replies):
            return None
        q = replies.mean_coefficients("n") * replies.work_factors(True)
        self.x = self.x + replies.weighted_sum(q)
        self.done, self.since = self.done + 1, self._round + 1
        if self.done < self.V:
            return None
        self.phase, self.weights = "train", None
        if not len(self.models):
            return weights.copy(), buffers.copy()
        a = self.mixture(self.x - self.pilot)
        report.events.append({"event": "initial-model", "weights": a.tolist()})
        return a @ self.models, combined_buffers(a, self.buffers)

    def mixture(self, gradient: Vector) -> Vector:
        """Return a_i, the weights of the earlier sessions, shape (S,), given G, shape (M,)."""
        found = [self.similarity(*units) for units in self._units(gradient)]
        mean = np.mean(found, axis=0) if found else np.zeros(len(self.gradients))
        a: Vector = np.exp(self.R * (mean - mean.max()))
        a /= a.sum()
        return a

    def _units(self, gradient: Vector) -> Iterator[tuple[Vector, Vector]]:
        """Yield G_i / |G_i| and G / |G| of each tensor that is compared.

        Those of one dimension are left out, unless there are no others, and those that are zero in a session.
        """
        matrices = any(len(shape) > 1 for shape in self.layout.shapes)
        start = 0
        for shape in self.layout.shapes:
            at = slice(start, start := start + int(np.prod(shape)))
            if matrices and len(shape) < 2:
                continue
            both = np.vstack([self.gradients[:, at], gradient[at]])
            norms = np.linalg.norm(both, axis=1, keepdims=True)
            if norms.all():
                both /= norms
                yield both[:-1], both[-1]

    def _changed(self, roster: Roster) -> bool:
        """Whether enough of the data has come or gone since the session began; also who has no data."""
        now, n = roster.contributors, roster.num_examples.astype(np.float64)
        then = np.zeros_like(now)
        then[: len(self.members)] = self.members
        then &= ~roster.data_less
        if np.array_equal(now, then):
            return False
        either = now | then
        known = either & (n > 0)
        n[n == 0] = n[known].mean() if known.any() else 1.0
        return bool(1 - n[now & then].sum() / n[either].sum() >= self.min_change)

    def _remember(self, weights: Vector, buffers: Vector) -> None:
        """Keep what the ending session leaves: the pilot model, or its model and pseudo-gradient."""
        if self.phase == "first":
            self.pilot = weights.copy()
        elif self.phase == "train" and self.trained:
            self.gradients = np.vstack([*self.gradients, self.x - self.pilot])[-self.keep :]
            self.models = np.vstack([*self.models, weights])[-self.keep :]
            self.buffers = np.vstack([*self.buffers, buffers])[-self.keep :]


class TwoNorm(Mixture):
    """Similarity -|G_i / |G_i| - G / |G||, mean over the tensors."""

    def similarity(self, units: Vector, unit: Vector) -> Vector:
        distances: Vector = np.linalg.norm(units - unit, axis=1)
        return -distances


class InnerProduct(Mixture):
    """Similarity <G_i, G> / (|G_i| |G|), the cosine, mean over the tensors."""

    def similarity(self, units: Vector, unit: Vector) -> Vector:
        cosines: Vector = units @ unit
        return cosines


INITIAL_MODELS: dict[str, Callable[..., InitialModel]] = {"two-norm": TwoNorm, "inner-product": InnerProduct}
"""Initial models by name: ``(layout, weights, *, options)``."""
