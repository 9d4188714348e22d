"""The interface of all transports: they send instructions to clients and collect replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.replies import ReplyTable
from strategies.core.round import ClientFailure
from strategies.core.state import StateDict

FitInstructions = Sequence[tuple[ClientProxy, FitIns]]
EvaluateInstructions = Sequence[tuple[ClientProxy, EvaluateIns]]
EvaluateResults = list[tuple[ClientProxy, EvaluateRes]]


class EngineLost(Exception):  # noqa: N818 - an event outside of the program, not an error in it
    """Ray, or the disk for the clients' memories, has failed: the run cannot continue, no client is to blame.

    The message says in one line what has happened and what can be done.
    """


class Transport(ABC):
    """Exchanges the messages of a round with the clients, all at once."""

    # Of the last `fit`, if it can be measured: the phases `broadcast` (until the clients have started),
    # `train` (until they have finished) and `collect`; and `work`, of the worker that took longest.
    seconds: Mapping[str, float]
    notes: Sequence[str] = ()  # on faults during the last `fit` after which no client failed

    def __init__(self) -> None:
        self.seconds = {}

    def reachable(self) -> NDArray[np.intp] | None:
        """Return the clients that are connected now, in ascending order; None: all of them."""
        return None

    def at_work(self) -> NDArray[np.intp]:
        """Return the clients that are still at work on an earlier task, in ascending order."""
        return np.empty(0, np.intp)

    def is_stuck(self) -> bool:
        """Whether no worker is left, so that the round may never end."""
        return False

    @abstractmethod
    def proxy(self, client: int) -> ClientProxy:
        """Return the proxy of one client."""

    @abstractmethod
    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Have clients train; each of them is in exactly one of the two lists.

        Replies to earlier tasks that have arrived since the last call are among the results. EngineLost: the
        run cannot continue.
        """

    @abstractmethod
    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Have clients evaluate; each of them is in exactly one of the two lists. Raises as `fit` does."""

    def record(self) -> dict[str, Any]:
        """Return additions to the record of the last round, with `events` if clients are devices."""
        return {}

    def state_dict(self) -> StateDict:
        """Return the state that a resumed run needs; see `strategies.core.state`."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:  # noqa: B027
        """Restore a state that `state_dict` returned; ValueError if it is that of another run."""

    def close(self) -> None:  # noqa: B027
        """Release the resources of the transport."""
