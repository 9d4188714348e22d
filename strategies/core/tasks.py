"""The tasks that clients have still to answer, and what they were sent for them.

A client that is not done at the end of a round may answer in a later one. It then started from an older model
than those who answer on time: its update is the difference to what it was sent for that task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import FlatParameters, Layout, stacked
from strategies.core.roster import Clients
from strategies.core.state import StateDict, Stateful, take


class Sent(NamedTuple):
    """What the clients of a round were sent.

    Attributes
    ----------
    round
        The round.
    weights
        Weights to start from.
    learning_rate
        Rate of the local steps.
    version
        How often the global weights had changed before.
    """

    round: int
    weights: FlatParameters
    learning_rate: float
    version: int


class OpenTasks(Stateful):
    """Tasks without an answer; what was sent for a task is forgotten when nobody is at work on it.

    Parameters
    ----------
    layout
        Layout of the weights and buffers.

    Attributes
    ----------
    sent
        What was sent, by round.
    """

    def __init__(self, layout: Layout) -> None:
        self.sent: dict[int, Sent] = {}
        self._layout = layout
        self._round = 0
        self._open: dict[int, int] = {}

    def begin(self, server_round: int, at_work: Clients, asked: NDArray[np.int64]) -> None:
        """Begin a round.

        Parameters
        ----------
        server_round
            The round.
        at_work
            Clients that are at work on an earlier task.
        asked
            Round of each client's last task, 0 if it has none to answer any more, shape (N,).
        """
        rounds = zip(at_work.tolist(), asked[at_work].tolist(), strict=True)
        self._round = server_round
        self._open = {client: task for client, task in rounds if task in self.sent}
        self.sent = {task: self.sent[task] for task in sorted(set(self._open.values()))}

    def ask(self, clients: Clients, sent: Sent) -> None:
        """Note whom the current round asks, and what they are sent."""
        self._open |= dict.fromkeys(clients.tolist(), sent.round)
        self.sent[sent.round] = sent

    def of(self, client: int | None, server_round: int) -> Sent | None:
        """Return what a client was sent for the task that it has to answer; None: there is none."""
        if client is None or server_round != self._round or client not in self._open:
            return None
        return self.sent[self._open[client]]

    def of_all(self, clients: Clients, server_round: int) -> Sent | None:
        """Return what all these clients were sent in this round; None: that is not so for one of them."""
        if server_round != self._round or server_round not in self.sent:
            return None
        asked = all(self._open.get(client) == server_round for client in clients.tolist())
        return self.sent[server_round] if asked else None

    def state_dict(self) -> StateDict:
        """Return what was sent: rounds, rates and versions of shape (R,), weights in R rows."""
        sent = self.sent.values()
        return {
            "rounds": np.array([*self.sent], np.int64),
            "weights": stacked([part.weights for part in sent], self._layout),
            "learning_rates": np.array([part.learning_rate for part in sent], np.float64),
            "versions": np.array([part.version for part in sent], np.int64),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was sent; who is at work is told when the next round begins."""
        rounds, weights, rates, versions = (
            take(state, key) for key in ("rounds", "weights", "learning_rates", "versions")
        )
        self._round, self._open = 0, {}
        self.sent = {}
        for task, row, rate, version in zip(
            rounds.tolist(), weights, rates.tolist(), versions.tolist(), strict=True
        ):
            vector = np.array(row, self._layout.dtype)
            self.sent[task] = Sent(task, FlatParameters(vector, self._layout), rate, version)
