"""APFL at the client: a personal model, mixed with the local one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from clients.rules.base import SGD, Oracle, Rate, no_fisher, subtract
from flexfl.contract import FitConfig


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

    def __init__(
        self,
        weights: Tensor,
        arrays: Sequence[Tensor],
        config: FitConfig,
        state: Mapping[str, Tensor],
        fisher: Oracle = no_fisher,
    ) -> None:
        super().__init__(weights, arrays, config, state, fisher)
        if not self.state:
            alpha = weights.new_full((*weights.shape[:-1], 1), float(config.own["alpha"]))
            self.state = {"v": weights.clone(), "alpha": alpha}
        self.adapts = config.own["alpha-mode"] != "fixed"

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` and the state."""
        v, alpha = self.state["v"], self.state["alpha"]
        at_local = gradient(y).clone()  # first, as the loss at the first gradient is reported
        at_mixture = gradient(self.mixture(y))
        slope = ((v - y) * at_mixture).sum(-1, keepdim=True)  # of f(vbar) in alpha
        factor = alpha if self.config.own["gradient"] == "chain-rule" else 1.0
        v.sub_(rate * factor * at_mixture)
        if self.adapts:
            alpha.sub_(rate * slope).clamp_(0, 1)
            self.adapts = self.config.own["alpha-mode"] == "step"
        subtract(y, at_local, rate)

    def personal(self) -> Tensor:
        """Return alpha v + (1 - alpha) w."""
        return self.mixture(self.weights)

    def mixture(self, y: Tensor) -> Tensor:
        """Return alpha v + (1 - alpha) y."""
        v, alpha = self.state["v"], self.state["alpha"]
        return alpha * v + (1 - alpha) * y
