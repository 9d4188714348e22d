"""The last message to a client that leaves the objective: it is asked for the state that only it has.

What a departed client contributed has to be taken back (FedLaAvg) or distributed (MimiC). Where clients keep
that themselves, the server asks for it in the round in which it learns of the departure. A client that leaves
without a word, or cannot be reached any more, does not answer; what that costs, the method says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from flwr.common import FitIns
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.decoding import check_round, read_vector
from strategies.core.instructions import RoundInstructions, Task
from strategies.core.parameters import read_arrays
from strategies.core.results import FitResult, FitResults

Answers = dict[int, NDArray[np.float64] | None]


def ask(
    leaving: list[int],
    instructions: RoundInstructions[FitIns],
    accepted: NDArray[np.int64],
    proxy: Callable[[int], ClientProxy],
) -> None:
    """Add the farewells of a round to its instructions, for those who can still be reached.

    Parameters
    ----------
    leaving
        Clients that leave in this round and have something to hand in.
    instructions
        What the round's clients are asked to do.
    accepted
        Last round in which each client's reply counted, shape (N,).
    proxy
        Gives the proxy of a client; raises KeyError if there is none.
    """
    for client in leaving:
        with suppress(KeyError):
            instructions.add(proxy(client), Task(last_accepted=int(accepted[client]), farewell=True))


def collect(
    leaving: list[int], server_round: int, results: FitResults, find: Callable[[str], int | None], size: int
) -> tuple[Answers, FitResults, list[tuple[str, str]]]:
    """Separate the answers of those who leave from the round's other results.

    Parameters
    ----------
    leaving
        Clients that were to be asked.
    server_round
        The current round.
    results
        What came back.
    find
        Gives the index of a client by its name.
    size
        M.

    Returns
    -------
    answers, others, rejected
        The state of each of them, shape (M,), None for those who did not answer; the results of the other
        clients; name and reason of each answer that was none.
    """
    if not leaving:
        return {}, results, []
    answers: Answers = dict.fromkeys(leaving)
    others: list[FitResult] = []
    rejected: list[tuple[str, str]] = []
    for proxy, result in results:
        client = find(proxy.cid)
        if client is None or client not in answers:
            others.append((proxy, result))
            continue
        try:
            if answers[client] is not None:
                raise ValueError("second farewell")
            check_round(result, server_round)
            answers[client] = read_vector(read_arrays(result.parameters), size).astype(np.float64)
        except ValueError as reason:
            rejected.append((proxy.cid, str(reason)))
    return answers, others, rejected
