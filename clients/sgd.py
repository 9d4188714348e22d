"""Plain local SGD, and what the rules of all methods have in common."""

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

    Attributes
    ----------
    fisher
        Diagonal of the Fisher information at weights (..., M) on the client's data; there if `needs_fisher`.
    """

    fisher: Oracle

    def __init__(
        self, weights: Tensor, arrays: Sequence[Tensor], config: Config, state: Mapping[str, Tensor]
    ) -> None:
        self.weights, self.arrays, self.config, self.state = weights, arrays, config, dict(state)

    @property
    def needs_fisher(self) -> bool:
        """Whether the rule calls `fisher`."""
        return False

    @property
    def sends_weights(self) -> bool:
        """Whether the local weights are sent; else `upload` returns all that is."""
        return True

    def step(self, y: Tensor, gradient: Oracle, rate: float) -> None:
        """Do one local step: change `y` in place."""
        y.sub_(gradient(y), alpha=rate)

    def upload(self, y: Tensor, steps: int, rate: float) -> list[Tensor]:
        """Return the method's own arrays that follow the local weights `y` after `steps` steps."""
        return []

    def personal(self) -> Tensor:
        """Return the weights that suit this client best, shape (..., M): the global ones, as a rule."""
        return self.weights

    def remember(self, y: Tensor, steps: int, rate: float) -> dict[str, Tensor]:
        """Return the state after this round, should the reply be accepted."""
        return self.state
