"""The rules of the personalised methods, whose clients keep a model of their own beside the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clients.rules.sgd import SGD, Config, Oracle, Rate, subtract


class APFL(SGD):
    """A personal v beside the local w_i, mixed by alpha (Deng et al. 2020, Algorithm 1).

    With vbar = alpha v + (1 - alpha) w_i, all of it from the old values:

        w_i   -= eta grad f(w_i)
        v     -= eta alpha grad f(vbar)              (`gradient` = chain; without alpha for plain)
        alpha -= eta <v - w_i, grad f(vbar)>, clipped to [0, 1]    (`alpha-mode` = step, round: first step)

    State: v, shape (..., M), and alpha, shape (..., 1). A client's first participation begins with v = w.
    """

    def __init__(
        self, weights: Tensor, arrays: Sequence[Tensor], config: Config, state: Mapping[str, Tensor]
    ) -> None:
        super().__init__(weights, arrays, config, state)
        if not self.state:
            alpha = weights.new_full((*weights.shape[:-1], 1), float(config["alpha"]))
            self.state = {"v": weights.clone(), "alpha": alpha}
        self.adapts = config["alpha-mode"] != "fixed"

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` and the state."""
        v, alpha = self.state["v"], self.state["alpha"]
        at_local = gradient(y).clone()  # first, so that the loss that is reported is that of the local model
        at_mixture = gradient(self.mixture(y))
        change = ((v - y) * at_mixture).sum(-1, keepdim=True)  # of f(vbar) with alpha
        factor = alpha if self.config["gradient"] == "chain" else 1.0
        v.sub_(rate * factor * at_mixture)
        if self.adapts:
            alpha.sub_(rate * change).clamp_(0, 1)
            self.adapts = self.config["alpha-mode"] == "step"
        subtract(y, at_local, rate)

    def personal(self) -> Tensor:
        """Return alpha v + (1 - alpha) w."""
        return self.mixture(self.weights)

    def mixture(self, y: Tensor) -> Tensor:
        """Return alpha v + (1 - alpha) y."""
        v, alpha = self.state["v"], self.state["alpha"]
        return alpha * v + (1 - alpha) * y


class PFedMe(SGD):
    """A personal theta, tied to the local w_i (T Dinh et al. 2020, Algorithm 1).

        theta -= plr (grad f(theta) + lambda (theta - w_i)),    K times
        w_i   -= eta lambda (w_i - theta)

    with plr = `personal-rate`, lambda = `penalty`, K = `inner-steps`. The first K steps of a round begin at
    w, the others at the theta before (`start` = warm) or at w_i (`start` = w).

    State: theta, shape (..., M).
    """

    def __init__(
        self, weights: Tensor, arrays: Sequence[Tensor], config: Config, state: Mapping[str, Tensor]
    ) -> None:
        super().__init__(weights, arrays, config, state)
        self.fresh = True

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local round: change `y` and theta."""
        penalty, personal_rate = float(self.config["penalty"]), float(self.config["personal-rate"])
        if self.fresh or self.config["start"] == "w":
            self.state.setdefault("theta", torch.empty_like(y)).copy_(y)  # in the first step y is w
            self.fresh = False
        theta = self.state["theta"]
        for _ in range(int(self.config["inner-steps"])):
            pull = (theta - y).mul_(penalty)
            theta.sub_(pull.add_(gradient(theta)), alpha=personal_rate)
        y.lerp_(theta, rate * penalty)

    def personal(self) -> Tensor:
        """Return theta; w before the first participation."""
        return self.state.get("theta", self.weights)
