"""Rounds of a method without an engine: a test says who is there and what each client sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import ArrayLike, NDArray

from strategies import FlexibleStrategy


class NamedProxy(ClientProxy):
    """A proxy that only has a name: no message goes through it."""

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("no message goes through this proxy")

    get_properties = get_parameters = fit = evaluate = reconnect = _refuse  # type: ignore[assignment]


class TableManager(SimpleClientManager):
    """A client manager that answers who is there with what a test has assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.online: Sequence[int] = ()
        self.working: Sequence[int] = ()
        self.arrived: Sequence[int] = ()
        self.departed: Sequence[int] = ()

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Return the clients that may be asked."""
        return np.array(sorted(set(self.online) - set(self.working)), np.intp)

    def at_work(self, server_round: int) -> NDArray[np.intp]:
        """Return the clients that are still busy with an earlier task."""
        return np.array(sorted(self.working), np.intp)

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the clients that arrive and depart before the round."""
        return np.array(self.arrived, np.intp), np.array(self.departed, np.intp)

    def release(self, clients: NDArray[np.intp]) -> None:
        """Take clients for free, as their tasks are stopped."""
        self.working = sorted({*self.working} - {*clients.tolist()})

    def proxy(self, client: int) -> ClientProxy:
        """Return the proxy of a client."""
        return NamedProxy(str(client))


def reply(
    instruction: FitIns,
    delta: ArrayLike,
    num_examples: int = 10,
    arrays: Sequence[NDArray[Any]] | None = None,
    **metrics: Any,
) -> FitRes:
    """Return the reply of a client that has moved its weights.

    Parameters
    ----------
    instruction
        What the client was sent.
    delta
        Its update, shape (M,).
    num_examples
        n_k.
    arrays
        What it sends in place of the weights.
    metrics
        What it reports besides, such as `steps=3`, with underscores.
    """
    if arrays is None:
        count = int(instruction.config["model-arrays"])
        start = parameters_to_ndarrays(instruction.parameters)[:count]
        vector = np.concatenate([a.ravel() for a in start]) + np.asarray(delta)
        cuts = np.cumsum([a.size for a in start])[:-1]
        arrays = [p.reshape(a.shape) for p, a in zip(np.split(vector, cuts), start, strict=True)]
    told = {key.replace("_", "-"): value for key, value in metrics.items()}
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(arrays)), num_examples, told)


class Rounds:
    """Plays rounds with a strategy, from round 1 on; a client is named by its index.

    Parameters
    ----------
    strategy
        The method, made by `strategies.make`.
    """

    def __init__(self, strategy: FlexibleStrategy) -> None:
        self.strategy = strategy
        self.manager = TableManager()
        self.parameters: Any = strategy.initialize_parameters(self.manager)
        self.number = 0
        self.metrics: Mapping[str, Any] = {}

    def ask(
        self, online: Iterable[int], arrived: Sequence[int] = (), departed: Sequence[int] = ()
    ) -> dict[int, FitIns]:
        """Begin a round; return what each client that is asked is told to do."""
        self.number += 1
        self.manager.online, self.manager.arrived, self.manager.departed = sorted(online), arrived, departed
        asked = self.strategy.configure_fit(self.number, self.parameters, self.manager)
        return {int(proxy.cid): instruction for proxy, instruction in asked}

    def hear(self, *replies: tuple[int | str, FitRes]) -> NDArray[np.floating]:
        """End the round with these replies, by client; return the new weights, shape (M,)."""
        results: list[tuple[ClientProxy, FitRes]] = [(NamedProxy(str(name)), r) for name, r in replies]
        self.parameters, self.metrics = self.strategy.aggregate_fit(self.number, results, [])
        return self.strategy.weights.copy()

    def play(
        self,
        deltas: Mapping[int, ArrayLike],
        arrived: Sequence[int] = (),
        departed: Sequence[int] = (),
        **metrics: Mapping[int, Any],
    ) -> NDArray[np.floating]:
        """Play a round in which the clients of `deltas` are there and move by that much; return the weights.

        A client reports the size that the roster knows, and of each metric what is given for it.
        """
        asked = self.ask(deltas, arrived, departed)
        sizes = self.strategy.roster.num_examples
        replies = []
        for client, instruction in asked.items():
            told = {key: values[client] for key, values in metrics.items() if client in values}
            replies.append((client, reply(instruction, deltas[client], int(sizes[client]), **told)))
        return self.hear(*replies)
