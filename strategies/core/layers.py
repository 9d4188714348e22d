"""What stands around a method: layers on top of it, and rounds in which it rests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Roster
from strategies.core.round import RoundReport
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


class InitialModel(Stateful):
    """Decides what a method goes on from when the members have changed; clients probe another model for it.

    In a probe round the clients that are asked do plain SGD from `weights`, at half the learning rate. To the
    method it is a round without replies in which it takes no step.

    Attributes
    ----------
    weights
        What clients start from in this round, shape (M,); None: they train for the method.
    since
        First round whose tasks may still be answered: those of an older one were about another model.
    trained
        Whether replies have counted in a round of the method since the last probe.
    """

    weights: Vector | None = None
    since: int = 0
    trained: bool = False

    @abstractmethod
    def begin(self, server_round: int, roster: Roster, weights: Vector, buffers: Vector) -> None:
        """Begin a round, given the members and the global model, and decide on `weights` and `since`."""

    @abstractmethod
    def end(
        self, replies: Replies, weights: Vector, buffers: Vector, report: RoundReport
    ) -> tuple[Vector, Vector] | None:
        """Take in the replies of a probe round, if any; return the model to go on from, with its buffers.

        None: the probe goes on in the next round.
        """


InitialModelFactory = Callable[[Layout, Vector], InitialModel]
"""Makes one, given the layout of the weights, without buffers, and the initial ones, shape (M,)."""
