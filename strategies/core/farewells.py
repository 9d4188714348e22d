"""The last message to a client that leaves the objective: it is asked for what only it remembers.

What a departed client contributed has to be taken back (FedLaAvg) or handed over (MimiC). Where clients keep
that themselves, the server asks for it in the round in which it learns of the departure. A client that leaves
without a word, or cannot be reached any more, does not answer; what that costs, the method says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.common import FitIns, FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.interfaces import Task
from strategies.core.replies import read_vector, refuse_unless_in_time

# No work, see clients/rules/uploads.py; a client trains at least one step, however.
FAREWELL = Task(config=(("rule", "farewell"), ("local-steps", 1), ("local-epochs", 0)))

Answers = dict[int, NDArray[np.float64] | None]
Results = list[tuple[ClientProxy, FitRes]]


class Farewells:
    """The clients that leave in a round and have something to hand over."""

    def __init__(self) -> None:
        self.leaving: list[int] = []

    def ask(
        self, instruction: FitIns, accepted: NDArray[np.int64], proxy: Callable[[int], ClientProxy]
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the instructions for those who can still be reached.

        Parameters
        ----------
        instruction
            What all clients of the round get.
        accepted
            Last round in which each client's reply counted.
        proxy
            Gives the proxy of a client; raises KeyError if there is none.
        """
        common, asked = FAREWELL.added_to(instruction), []
        for client in self.leaving:
            with suppress(KeyError):
                last = Task(config=(("last-accepted", int(accepted[client])),))
                asked.append((proxy(client), last.added_to(common)))
        return asked

    def hear(
        self, server_round: int, results: Results, find: Callable[[str], int | None], size: int
    ) -> tuple[Answers, Results, list[tuple[str, str]]]:
        """End the round for those who leave.

        Returns
        -------
        answers, others, rejected
            What each of them remembers, shape (M,), None for those who did not answer; the results of the
            other clients; name and reason of each answer that was none.
        """
        answers: Answers = dict.fromkeys(self.leaving)
        others: Results = []
        rejected: list[tuple[str, str]] = []
        self.leaving = []
        for proxy, result in results:
            client = find(proxy.cid)
            if client is None or client not in answers:
                others.append((proxy, result))
                continue
            try:
                refuse_unless_in_time(result, server_round)
                answers[client] = read_vector(result.parameters, size).astype(np.float64)
            except ValueError as reason:
                rejected.append((proxy.cid, str(reason)))
        return answers, others, rejected


def event(client: int, memory: Any) -> dict[str, Any]:
    """Return the entry of the round's record."""
    return {"event": "farewell", "client": client, "received": memory is not None}
