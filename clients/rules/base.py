"""Plain local SGD, and what the rules of all methods have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from flexfl.contract import FitConfig

Rate = float | Tensor  # of all clients, or of each, shape (..., 1)
Change = Callable[[Tensor], object]

Oracle = Callable[[Tensor], Tensor]
"""Weights (..., M) -> gradient (..., M), overwritten by the next call.

An oracle may also have `descend(y, rate, besides)`, see the function of that name, if it has a faster way.
"""


def descend(y: Tensor, gradient: Oracle, rate: Rate, besides: Change | None = None) -> None:
    """y -= rate g(y), in place.

    Parameters
    ----------
    y
        Weights, shape (..., M).
    gradient
        Gives g(y).
    rate
        eta.
    besides
        Does what else changes `y` in this step: in place, after g(y) is known and before it is applied.
    """
    fused = getattr(gradient, "descend", None)
    if fused is not None:
        fused(y, rate, besides)
        return
    value = gradient(y)
    if besides is not None:
        besides(y)
    subtract(y, value, rate)


def subtract(y: Tensor, vector: Tensor, factor: Rate) -> None:
    """y -= factor * vector, in place."""
    if isinstance(factor, Tensor):
        y.addcmul_(vector, factor, value=-1)
    else:
        y.sub_(vector, alpha=factor)


def no_fisher(at: Tensor) -> Tensor:
    """Stand in where a client has no way to compute Fisher information."""
    raise ValueError("this client cannot compute Fisher information")


class SGD:
    """Plain stochastic gradient descent: y -= eta g(y) (Ruan et al., eq. 1), and the base of the other rules.

    Parameters
    ----------
    weights
        The global weights, shape (..., M); they stay as they are.
    arrays
        What the method sent after the weights, each of shape (..., M), or (M,) where it is the same for all.
    config
        The task; of the method's own scalars in `config.own`, those that its `Rule` names are there.
    state
        What the client remembers of its last accepted round, by name; empty at first. Each of shape (..., M)
        or (..., 1); a rule changes them in place.
    fisher
        Diagonal of the Fisher information at weights (..., M) on the client's data.
    """

    def __init__(
        self,
        weights: Tensor,
        arrays: Sequence[Tensor],
        config: FitConfig,
        state: Mapping[str, Tensor],
        fisher: Oracle = no_fisher,
    ) -> None:
        self.weights, self.arrays, self.state = weights, list(arrays), dict(state)
        self.config, self.fisher = config, fisher
        self._all: tuple[Tensor, list[Tensor], dict[str, Tensor]] | None = None

    def narrow(self, count: int) -> None:
        """Go on with the first `count` clients of a stacked cohort; with all of them: `widen`."""
        if self._all is None:
            self._all = (self.weights, self.arrays, self.state)
        weights, arrays, state = self._all
        self.weights = weights[:count]
        self.arrays = [a[:count] if a.dim() == weights.dim() else a for a in arrays]
        self.state = {key: value[:count] for key, value in state.items()}

    def widen(self) -> None:
        """Stand for all clients again; what `narrow` left out is as it was then."""
        if self._all is not None:
            (self.weights, self.arrays, self.state), self._all = self._all, None

    @property
    def sends_weights(self) -> bool:
        """Whether the local weights are sent; otherwise `upload` returns all that is."""
        return True

    @classmethod
    def plain(cls) -> bool:
        """Whether y -= eta g(y) is all that the local steps do."""
        return cls.step is SGD.step

    def step(self, y: Tensor, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        descend(y, gradient, rate)

    def upload(self, y: Tensor, steps: Rate, rate: Rate) -> Sequence[Tensor | list[Tensor]]:
        """Return the method's own arrays that follow the local weights `y` after `steps` steps.

        Where the length of an array differs between clients, it is a list with one tensor per client.
        """
        return []

    def personal(self) -> Tensor:
        """Return the weights that suit this client best, shape (..., M): the global ones by default."""
        return self.weights

    def remember(self, y: Tensor, steps: Rate, rate: Rate) -> dict[str, Tensor]:
        """Return the state after this round, should the reply be accepted."""
        return self.state


class VectorUpload(SGD):
    """Base of the rules that send one vector, shape (..., M), in place of the weights."""

    @property
    def sends_weights(self) -> bool:
        """Whether the local weights are sent; otherwise `upload` returns all that is."""
        return False
