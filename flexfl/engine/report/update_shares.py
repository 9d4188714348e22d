"""How much each client's updates count under a method and a trace: the bias of partial participation.

Client k gets the linear loss -<e_k, w> in a model with one weight for each client, so that its gradient is
-e_k wherever it is. All rounds are then played with the real strategy and the real local steps. What weight k
has become is the sum of all that the method has applied of client k's updates, stale, corrected and echoed
ones included.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

import strategies
from clients import single
from clients.memory.handshake import Memory
from clients.rules.base import Oracle
from flexfl.config import Settings, parse
from flexfl.contract import FitConfig
from flexfl.engine.availability import TraceClientManager, remember
from flexfl.engine.methods import strategy_options, strategy_type
from flexfl.engine.server import RoundServer
from flexfl.engine.transports.base import (
    ClientFailure,
    EvaluateInstructions,
    EvaluateResults,
    FitInstructions,
    FitResults,
)
from flexfl.engine.transports.late import with_late_replies
from strategies import FlatParameters, Layout, Roster
from traces import Trace, finished_steps


def update_shares(settings: Settings, sizes: NDArray[np.int64], trace: Trace) -> NDArray[np.float64]:
    """Return each client's share of everything that was applied to the weights, shape (N,).

    Without bias it is the client's share of the data, or 1 / N with methods that count clients alike.

    Parameters
    ----------
    settings
        Method, rounds, local steps, rates and seed.
    sizes
        n_k, shape (N,).
    trace
        Who takes part when.

    Raises
    ------
    ValueError
        The settings are invalid, or the method trains without clients.
    """
    name = parse("strategy", settings.strategy).name
    method = strategy_type(name)
    if method.late_replies == "refuse":
        raise ValueError(f"strategy {name} has no clients whose updates could be told apart")
    N = trace.num_clients
    initial = FlatParameters(np.zeros(N), Layout(((N,),), np.dtype(np.float64)))
    roster = Roster(sizes, trace.round(1).member, trace.participation)
    strategy = strategies.make(method, initial, roster, options=strategy_options(settings))
    availability = remember(trace)
    transport = with_late_replies(LinearClients(sizes, trace), trace)
    manager = TraceClientManager(availability, transport, settings.seed)
    RoundServer(strategy, manager, transport).fit(settings.num_rounds)
    total = strategy.weights.sum()
    shares: NDArray[np.float64] = strategy.weights / total if total else strategy.weights
    return shares


class LinearClients:
    """A transport to clients with linear losses, each in a direction of its own.

    Parameters
    ----------
    sizes
        n_k, shape (N,).
    trace
        Which share of its work each client finishes, and whose replies are lost.
    """

    def __init__(self, sizes: NDArray[np.int64], trace: Trace) -> None:
        self.sizes, self.trace = sizes, trace
        self.seconds: Mapping[str, float] = {}
        self.memories: dict[int, Memory] = {}

    def reachable(self) -> None:
        """Return None: all are connected."""

    def at_work(self) -> NDArray[np.intp]:
        """Return nobody: a round lasts until all are done."""
        return np.empty(0, np.intp)

    def proxy(self, client: int) -> ClientProxy:
        """Return a proxy that has a name only: messages do not go through it."""
        return Named(str(client))

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        """Have clients do their local steps."""
        completion, lost = self.trace.round(server_round).completion, self.trace.lost(server_round)
        results: FitResults = []
        failures: list[ClientFailure] = []
        for proxy, instruction in instructions:
            client = int(proxy.cid)
            config, n = FitConfig.from_wire(instruction.config), int(self.sizes[client])
            steps = int(finished_steps(completion[client], config.planned_steps(n)))
            if not steps and not config.farewell:
                failures.append(ClientFailure(proxy.cid, "dropped in mid-round"))
                continue
            memory = self.memories.get(client)
            result, memory = single.fit(
                instruction, self._gradient(client), n, memory, steps=steps, fisher=torch.ones_like
            )
            if memory is not None:
                self.memories[client] = memory
            if lost[client]:
                failures.append(ClientFailure(proxy.cid, "reply lost"))
            else:
                results.append((proxy, result))
        return results, failures

    def _gradient(self, client: int) -> Oracle:
        """Return the gradient of a client's loss: -e_k."""
        gradient = torch.zeros(len(self.sizes), dtype=torch.float64)
        gradient[client] = -1
        return lambda at: gradient.clone()

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Evaluate nobody."""
        return [], []

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class Named(ClientProxy):
    """A client's name."""

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise TypeError("linear clients are reached through their transport only")

    get_properties = get_parameters = fit = evaluate = reconnect = _refuse  # type: ignore[assignment]
