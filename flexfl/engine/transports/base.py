"""How instructions reach clients and replies come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

FitInstructions = Sequence[tuple[ClientProxy, FitIns]]
FitResults = list[tuple[ClientProxy, FitRes]]
EvaluateInstructions = Sequence[tuple[ClientProxy, EvaluateIns]]
EvaluateResults = list[tuple[ClientProxy, EvaluateRes]]


class ClientFailure(Exception):  # noqa: N818 - an event of the round, handed over like Flower's failures
    """A client that was asked and did not answer as it should.

    Attributes
    ----------
    client
        Its name.
    reason
        What happened, in words.
    """

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason = client, reason


class Transport(Protocol):
    """Carries the messages of a round, all of them at once.

    Attributes
    ----------
    seconds
        How long each phase of the last `fit` took, where the transport can tell them apart: `broadcast`
        (until the clients are at work), `train` (until they are done) and `collect`.
    """

    seconds: Mapping[str, float]

    def reachable(self) -> NDArray[np.intp] | None:
        """Clients that can be reached now, in ascending order; None: all of them."""

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client."""

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        """Let clients train; every client asked is in exactly one of the two lists."""

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Let clients evaluate; every client asked is in exactly one of the two lists."""

    def close(self) -> None:
        """Free what the transport holds."""
