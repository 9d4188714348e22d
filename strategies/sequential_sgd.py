"""Sequential SGD: what training could do at best if all data were in one place.

The baseline of Yan et al. 2020, section 6.1.2: plain SGD on the whole data set, with beta N C iterations in a
round, as many local steps as the K = beta N clients of a round do together. No client is asked for anything:
the engine trains, so this is not a federated method, nor one of `strategies.STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strategies import Clients, FlexibleStrategy, Replies
from strategies.core.parameters import FloatVector

Trainer = Callable[[FloatVector, NDArray[np.intp], int, int, float, int], FloatVector]
"""Trains on the union of some clients' data, see `fedtide.engine.central.CentralTrainer`."""


class SequentialSGD(FlexibleStrategy):
    """The centralised ideal: K E steps of SGD per round on the union of the members' data; asks no client.

    K is `clients_per_round`; where that is 0, as many clients as are available in the round, so that others
    are compared with as much work as they could do. With local epochs, E is the members' mean.

    The union is that of the objective: it has the data of members that are away, gains those of clients that
    arrive, and loses those of clients that depart, unless their objective is kept.
    """

    suits = "comparison: what could be had if all data were in one place"
    takes_layers = takes_initial_model = False  # nobody sends an update
    trainer: Trainer  # to be set before the first round

    def select(self, available: Clients) -> Clients:
        """Ask nobody; count the steps of those who would be asked."""
        chosen, sizes = len(super().select(available)), self.roster.num_examples[self.roster.member]
        self.iterations = round(chosen * self.options.mean_steps(sizes))
        return available[:0]

    def update(self, replies: Replies) -> None:
        """Nobody is asked, so there are no replies."""

    def empty_round(self) -> None:
        """Train on the union."""
        members = np.flatnonzero(self.roster.contributors)
        self.report.measured["iterations"] = self.iterations if len(members) else 0
        if self.report.measured["iterations"]:
            work = self.iterations, self.learning_rate, self.options.batch_size
            trained = self.trainer(self.coordinator.sent.vector, members, self.round, *work)
            self.weights, self.buffers = self.wire.divide(trained)
