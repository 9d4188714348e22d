"""Layers: what happens to a method's change of the global weights before it is applied."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import Stateful

Vector = NDArray[np.float64]


class Layer(Stateful):
    """A layer on top of any method that is w := w + D; it sees w and the pseudo-update D only."""

    @abstractmethod
    def apply(self, before: Vector, after: Vector, server_round: int, lag: int) -> Vector:
        """Return the weights, shape (M,), after a round, also one without replies.

        `after` is what the method, or the layer below, made of them: before + D. Where that is equal to
        `before`, no update took place. `lag` is the largest of the replies that D is made of.
        """

    def evaluated(self, weights: Vector) -> Vector:
        """Return the weights that are evaluated where the method, or the layer above, would have these."""
        return weights

    def restart(self, weights: Vector, server_round: int) -> None:
        """Forget what belongs to the model before: from the next round on, training starts from `weights`."""


LayerFactory = Callable[[Vector], Layer]
"""Makes a layer, given the initial weights."""
