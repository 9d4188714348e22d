"""The interface of all transports: they send instructions to clients and collect replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.results import FitResults
from strategies.core.state import StateDict

FitInstructions = Sequence[tuple[ClientProxy, FitIns]]
EvaluateInstructions = Sequence[tuple[ClientProxy, EvaluateIns]]
EvaluateResults = list[tuple[ClientProxy, EvaluateRes]]


class ClientFailure(Exception):  # noqa: N818 - an event of the round, passed on as Flower passes failures
    """A client that was sent an instruction and did not return a valid reply.

    Attributes
    ----------
    client
        Name of the client.
    reason
        Description of the failure, for people.
    """

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason = client, reason


class EngineLost(Exception):  # noqa: N818 - an event outside of the program, not an error in it
    """Ray, or the disk for the clients' memories, has failed: the run cannot continue.

    No client is to blame. The message says in one line what has happened and what can be done.
    """


class Transport(Protocol):
    """Exchanges the messages of a round with the clients, all at once.

    Attributes
    ----------
    seconds
        Duration of each phase of the last `fit`, if the transport can measure it: `broadcast` (until the
        clients have started), `train` (until they have finished) and `collect`; and `work`, of the worker
        that took longest.
    notes
        Sentences about faults during the last `fit` that caused no client to fail.
    """

    seconds: Mapping[str, float]
    notes: Sequence[str]

    def reachable(self) -> NDArray[np.intp] | None:
        """Return the clients that are connected now, in ascending order; None: all of them."""

    def at_work(self) -> NDArray[np.intp]:
        """Return the clients that are still at work on an earlier task, in ascending order."""

    def proxy(self, client: int) -> ClientProxy:
        """Return the proxy of one client."""

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        """Have clients train; each of them is in exactly one of the two lists.

        Replies to earlier tasks that have arrived since the last call are among the results.

        Raises
        ------
        EngineLost
            The run cannot continue.
        """

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Have clients evaluate; each of them is in exactly one of the two lists. Raises as `fit` does."""

    def state_dict(self) -> StateDict:
        """Return what a resumed run needs; see `strategies.core.state`."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state that `state_dict` returned.

        Raises
        ------
        ValueError
            Something is missing: the state belongs to another run.
        """

    def close(self) -> None:
        """Release the resources of the transport."""
