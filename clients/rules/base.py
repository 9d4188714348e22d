"""Plain local SGD, and what the rules of all methods have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from clients.memory.handshake import ClientState
from clients.rules.vectors import Rate, Vector, approach, subtract
from fedtide.base.contract import FitConfig

Change = Callable[[Vector], object]
"""Changes weights (..., M) in place."""

Oracle = Callable[[Vector], Vector]
"""Weights (..., M) -> gradient (..., M), overwritten by the next call."""


class DescendingOracle(ABC):
    """An oracle that knows a faster way to descend than to return the gradient."""

    @abstractmethod
    def __call__(self, at: Vector) -> Vector:
        """Return the gradient; see `Oracle`."""

    @abstractmethod
    def descend(self, y: Vector, rate: Rate, change: Change | None) -> None:
        """Do what the function `descend` does."""


def descend(y: Vector, gradient: Oracle, rate: Rate, change: Change | None = None) -> None:
    """y -= rate g(y), in place.

    `change` is what else the step does to `y`: called when g(y) is computed, but not yet subtracted.
    """
    if isinstance(gradient, DescendingOracle):
        gradient.descend(y, rate, change)
        return
    value = gradient(y)
    if change is not None:
        change(y)
    subtract(y, value, rate)


Own = Vector | list[Vector]
"""A method's own array, shape (..., M); where its length differs between clients, a list of theirs."""


class Correction(NamedTuple):
    """What a rule adds to every gradient: strength (y - w) + direction, with the global weights w."""

    strength: float = 0.0
    direction: Vector | None = None  # (..., M), or (M,) if it is the same for all clients; None: zero

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing."""
        return not self.strength and self.direction is None

    def apply(self, y: Vector, weights: Vector, rate: Rate) -> None:
        """y -= eta (strength (y - w) + direction), in place."""
        if self.strength:
            approach(y, weights, rate * self.strength)
        if self.direction is not None:
            subtract(y, self.direction, rate)


def no_fisher(at: Vector) -> Vector:
    """Raise ValueError: the oracle of clients that cannot compute Fisher information."""
    raise ValueError("this client cannot compute Fisher information; set the method's elasticity to 0")


class SGD:
    """Plain stochastic gradient descent: y -= eta g(y) (Ruan et al., eq. 1), and the base of the other rules.

    Parameters
    ----------
    weights
        The global weights, shape (..., M); never changed.
    arrays
        The method's own arrays, each of shape (..., M), or (M,) if it is the same for all clients.
    config
        The task; `config.own` has the scalars that the method's `Rule` names.
    state
        The client's state after its last accepted round, by name; empty at first. Each of shape (..., M) or
        (..., 1); a rule may change them in place.
    fisher
        Weights (..., M) -> diagonal of the Fisher information on the client's data.

    Attributes
    ----------
    vectors, numbers
        Names of what a client's state always has of shape (..., M), and of shape (..., 1); what else it has
        may be of either.
    sends_weights
        Whether the local weights are sent, before the arrays of `finish`.
    """

    vectors: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    sends_weights: bool = True

    def __init__(
        self,
        weights: Vector,
        arrays: Sequence[Vector],
        config: FitConfig,
        state: Mapping[str, Vector],
        fisher: Oracle = no_fisher,
    ) -> None:
        self.weights, self.arrays, self.state = weights, list(arrays), dict(state)
        self.config, self.fisher = config, fisher
        self._all: tuple[Vector, list[Vector], dict[str, Vector]] | None = None
        self.setup()

    @classmethod
    def check_state(cls, state: ClientState, size: int, dtype: np.dtype[Any]) -> None:
        """Raise ValueError unless a client's state is empty, or may be one that `finish` returned.

        The model has `size` weights of type `dtype`.
        """
        named = {*cls.vectors, *cls.numbers}
        if state and (missing := named - state.keys()):
            raise ValueError(f"it has {', '.join(state)} and lacks {', '.join(sorted(missing))}")
        for name, array in state.items():
            expected = (
                [(size,)] if name in cls.vectors else [(1,)] if name in cls.numbers else [(size,), (1,)]
            )
            if array.shape not in expected or array.dtype != dtype:
                raise ValueError(
                    f"{name} has shape {array.shape} and type {array.dtype}, and the model needs "
                    f"{' or '.join(map(str, expected))} and {dtype}"
                )

    def setup(self) -> None:
        """Prepare a round, such as the state of a client that has none yet."""

    def narrow(self, count: int) -> None:
        """Continue with the first `count` clients of a stacked cohort, until `widen`."""
        if self._all is None:
            self._all = (self.weights, self.arrays, self.state)
        weights, arrays, state = self._all
        self.weights = weights[:count]
        self.arrays = [a[:count] if a.ndim == weights.ndim else a for a in arrays]
        self.state = {key: value[:count] for key, value in state.items()}

    def widen(self) -> None:
        """Undo `narrow`: the state of the clients that it left out is as it was then."""
        if self._all is not None:
            (self.weights, self.arrays, self.state), self._all = self._all, None

    @classmethod
    def steps_are_corrected(cls) -> bool:
        """Whether local steps do nothing but y -= eta g(y) and the `correction`."""
        return cls.step is SGD.step

    def correction(self) -> Correction:
        """Return the correction of this round's gradients; by default none.

        Rules that add something of this form need no `step` of their own, and all their steps may be done in
        one call.
        """
        return Correction()

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        """Do one local step: change `y` in place."""
        correction = self.correction()
        change = None if correction.is_zero else lambda y: correction.apply(y, self.weights, rate)
        descend(y, gradient, rate, change)

    def position(self, y: Vector) -> Vector:
        """Return the weights at which the next step takes its one gradient: usually `y`."""
        return y

    def finish(self, y: Vector, steps: Rate, rate: Rate) -> tuple[Sequence[Own], dict[str, Vector]]:
        """End the round, with the local weights `y` after `steps` steps.

        Returns
        -------
        arrays, state
            The method's own arrays to send, and the client's state if the reply of this round is accepted.
        """
        return [], self.state

    def personal(self) -> Vector:
        """Return the client's personal model, shape (..., M); by default the global weights."""
        return self.weights
