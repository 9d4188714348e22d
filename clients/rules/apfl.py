"""APFL at the client: a personal model, mixed with the local one."""

from __future__ import annotations

from clients.rules.base import SGD, Oracle
from clients.rules.vectors import Rate, Vector, copy_of, dot, numbers_like, subtract


class APFL(SGD):
    """A personal model v, mixed with the local w_i by alpha (Deng et al. 2020, Algorithm 1).

    With vbar = alpha v + (1 - alpha) w_i, all right-hand sides from the old values:

        w_i   -= eta grad f(w_i)
        v     -= eta alpha grad f(vbar)      (`gradient` = chain-rule; without alpha for plain)
        alpha -= eta <v - w_i, grad f(vbar)>, clipped to [0, 1]

    alpha changes in every step with `alpha-mode` = step, in the first step of a round with `round`, and never
    with `fixed`.

    State: v, shape (..., M), and alpha, shape (..., 1). In a client's first round, v starts at w.
    """

    vectors, numbers = ("v",), ("alpha",)

    def setup(self) -> None:
        if not self.state:
            w, alpha = self.weights, float(self.config.own["alpha"])
            self.state = {"v": copy_of(w), "alpha": numbers_like(w, alpha)}
        self.adapts = self.config.own["alpha-mode"] != "fixed"

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        v, alpha = self.state["v"], self.state["alpha"]
        at_local = copy_of(gradient(y))  # first, as the loss at the first gradient is reported
        at_mixture = gradient(self.mixture(y))
        slope = dot(v - y, at_mixture)  # of f(vbar) in alpha
        factor = alpha if self.config.own["gradient"] == "chain-rule" else 1.0
        v -= rate * factor * at_mixture
        if self.adapts:
            alpha -= rate * slope
            alpha[...] = alpha.clip(0, 1)
            self.adapts = self.config.own["alpha-mode"] == "step"
        subtract(y, at_local, rate)

    def personal(self) -> Vector:
        return self.mixture(self.weights)

    def mixture(self, y: Vector) -> Vector:
        """Return alpha v + (1 - alpha) y."""
        v, alpha = self.state["v"], self.state["alpha"]
        return alpha * v + (1 - alpha) * y
