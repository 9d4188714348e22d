"""What methods change about local SGD, as rules on flat vectors with any number of leading axes (..., M).

A rule is written once: the same code trains one client, a stacked cohort of clients, and a client on a
device. Only the gradient oracle underneath differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

Oracle = Callable[[Tensor], Tensor]  # weights (..., M) -> gradient (..., M), overwritten by the next call
Config = Mapping[str, Any]


class SGD:
    """Plain stochastic gradient descent: y -= eta g(y) (Ruan et al., eq. 1), and the base of the other rules.

    Parameters
    ----------
    weights
        The global weights, shape (..., M); they stay as they are.
    arrays
        What the method sent after the weights.
    config
        The scalars of the task.
    state
        What the client remembers of its last accepted round, by name; empty at first.
    """

    def __init__(
        self, weights: Tensor, arrays: Sequence[Tensor], config: Config, state: Mapping[str, Tensor]
    ) -> None:
        self.weights, self.arrays, self.config, self.state = weights, arrays, config, dict(state)

    def step(self, y: Tensor, gradient: Oracle, rate: float) -> None:
        """Do one local step: change `y` in place."""
        y.sub_(gradient(y), alpha=rate)

    def upload(self, y: Tensor, steps: int, rate: float) -> list[Tensor]:
        """Return the method's own arrays that follow the local weights `y` after `steps` steps."""
        return []

    def remember(self, y: Tensor, steps: int, rate: float) -> dict[str, Tensor]:
        """Return the state after this round, should the reply be accepted."""
        return self.state


class Proximal(SGD):
    """FedProx: y -= eta (g(y) + mu (y - w)) (Li et al. 2018, eq. 2)."""

    def step(self, y: Tensor, gradient: Oracle, rate: float) -> None:
        """Do one local step: change `y` in place."""
        pull = (y - self.weights).mul_(float(self.config["mu"]))
        y.sub_(pull.add_(gradient(y)), alpha=rate)


class Corrected(SGD):
    """y -= eta (g(y) + d) with a direction d, shape (..., M), that the server sends to each client.

    SCAFFOLD has d = c - c_i, FedGATE and VRL-SGD have d = -delta_i.
    """

    def step(self, y: Tensor, gradient: Oracle, rate: float) -> None:
        """Do one local step: change `y` in place."""
        step = gradient(y)
        if self.arrays:  # the server sends none while it is zero
            step = step + self.arrays[0]
        y.sub_(step, alpha=rate)


RULES: dict[str, type[SGD]] = {
    "sgd": SGD,
    "proximal": Proximal,
    "corrected": Corrected,
}
