"""Probes: rounds in which clients train another model than the method's, while the method rests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.report import RoundReport
from strategies.core.roster import Roster
from strategies.core.state import Stateful

Vector = NDArray[np.float64]


class Probe(Stateful):
    """Decides in which rounds clients are probed, and what the method goes on from; this one never does.

    In such a round the clients that are asked do plain SGD from `weights`, at half the learning rate. To the
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

    def __init__(self) -> None:
        self.weights: Vector | None = None
        self.since = 0
        self.trained = False

    @property
    def rate(self) -> float:
        """By what the learning rate of the round is multiplied."""
        return 1.0 if self.weights is None else 0.5

    def begin(self, server_round: int, roster: Roster, weights: Vector, buffers: Vector) -> None:
        """Begin a round, given the members and the global model, and decide on `weights` and `since`."""

    def end(
        self, replies: Replies, weights: Vector, buffers: Vector, report: RoundReport
    ) -> tuple[Vector, Vector] | None:
        """Take in the replies of a probe round, if any; return the model to go on from, with its buffers.

        None: the probe goes on in the next round.
        """
        return None


def never(layout: Layout, weights: Vector) -> Probe:
    """Return no probe."""
    return Probe()


ProbeFactory = Callable[[Layout, Vector], Probe]
"""Makes a probe, given the layout of the weights, without buffers, and the initial ones, shape (M,)."""
