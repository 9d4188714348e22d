"""Strategies of `flwr.server.strategy`, ours among them, on Flower's Message API."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import EvaluateRes, FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy as ClassicStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedtide.devices.flower_compat import node_proxy
from fedtide.devices.messages import (
    QUESTION,
    WHO_ARE_YOU,
    identity,
    message,
    packed,
    unpacked,
    with_scalars,
)
from fedtide.ground.errors import SettingsError
from strategies.core.results import ClientFailure

POLL_SECONDS = 0.1
IDENTIFY_SECONDS = 60.0
Res = TypeVar("Res", FitRes, EvaluateRes)


class MessageStrategy(Strategy):
    """Runs a strategy of the classic interface by `start(grid, initial_arrays, num_rounds, ...)`.

    Clients stay what they are: apps with a `client_fn`, to which the same instructions go in messages. The
    first time that a node is online, it is asked for the `client-id` in its properties, which is its client's
    name from then on, also on another node; a node without one is called by its number, which differs from
    run to run. A client that does not answer in time, fails or is offline takes no part in the round.

    Parameters
    ----------
    strategy
        Any `flwr.server.strategy.Strategy`.
    min_clients
        How many clients to wait for before the first round.
    connect_timeout
        For how many seconds at most.
    """

    def __init__(
        self, strategy: ClassicStrategy, min_clients: int = 1, connect_timeout: float = 120.0
    ) -> None:
        self.strategy, self.min_clients, self.connect_timeout = strategy, min_clients, connect_timeout
        self.manager = SimpleClientManager()
        self._names: dict[int, str] = {}  # of the clients, by node
        self._asked: dict[int, ClientProxy] = {}
        self._keys: list[str] = []
        self._arrays, self._parameters = ArrayRecord(), Parameters([], "")  # the same in two forms

    @property
    def initial_arrays(self) -> ArrayRecord:
        """The weights that the strategy starts from.

        Raises
        ------
        ValueError
            It has none.
        """
        parameters = self.strategy.initialize_parameters(self.manager)
        if parameters is None:
            raise SettingsError(
                f"{type(self.strategy).__name__} has no initial parameters; give start the arrays"
            )
        return self._as_arrays(parameters)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Select clients and give them their tasks; `config` is added to each.

        Raises
        ------
        TimeoutError
            Before the first round, too few clients have connected.
        """
        self._keys = list(arrays)
        self._connect(grid, self.min_clients if server_round == 1 else 0)
        asked = self.strategy.configure_fit(server_round, self._as_parameters(arrays), self.manager)
        return self._messages(server_round, asked, config, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the weights from the replies; clients that were asked and did not reply are failures."""
        results, failures = self._received(server_round, replies, FitRes, MessageType.TRAIN)
        parameters, metrics = self.strategy.aggregate_fit(server_round, results, failures)
        return None if parameters is None else self._as_arrays(parameters), _numbers(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask clients to evaluate, if the strategy does."""
        asked = self.strategy.configure_evaluate(server_round, self._as_parameters(arrays), self.manager)
        return self._messages(server_round, asked, config, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return what the strategy makes of the evaluations, if clients were asked."""
        if not self._asked:
            return None
        results, failures = self._received(server_round, replies, EvaluateRes, MessageType.EVALUATE)
        loss, metrics = self.strategy.aggregate_evaluate(server_round, results, failures)
        return _numbers(metrics if loss is None else {"loss": loss, **metrics})

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate at the server, as the strategy does: the `evaluate_fn` for `start`."""
        found = self.strategy.evaluate(server_round, self._as_parameters(arrays))
        return None if found is None else _numbers({"loss": found[0], **found[1]})

    def summary(self) -> None:
        """Log which strategy it is, with its options."""
        options = getattr(self.strategy, "options", "")
        _log(logging.INFO, f"\t{type(self.strategy).__name__} {options}")

    def _as_arrays(self, parameters: Parameters) -> ArrayRecord:
        """Return parameters as a record, under the names of the initial arrays."""
        if parameters is not self._parameters:
            tensors = parameters_to_ndarrays(parameters)
            keys = self._keys or [str(i) for i in range(len(tensors))]
            self._arrays = ArrayRecord(dict(zip(keys, map(Array, tensors), strict=True)))
            self._parameters = parameters
        return self._arrays

    def _as_parameters(self, arrays: ArrayRecord) -> Parameters:
        """Return the object that the strategy made, or a new one if the weights were changed outside."""
        if arrays is not self._arrays:
            self._arrays, self._parameters = arrays, ndarrays_to_parameters(arrays.to_numpy_ndarrays())
        return self._parameters

    def _connect(self, grid: Grid, least: int) -> None:
        """Bring the client manager up to date, and wait until it has some clients."""
        deadline = time.monotonic() + self.connect_timeout
        while True:
            online = set(grid.get_node_ids())
            self._identify(grid, sorted(online - self._names.keys()))
            for node, name in self._names.items():
                registered = self.manager.all().get(name)
                if node in online and registered is None:
                    self.manager.register(node_proxy(grid, node, name))
                elif node not in online and registered is not None and registered.node_id == node:
                    self.manager.unregister(registered)
            if len(self.manager) >= least:
                return
            if time.monotonic() > deadline:
                waited = f"after {self.connect_timeout:g} s, {len(self.manager)} of {least} clients"
                raise TimeoutError(f"{waited} are connected; start the others, or change min_clients")
            time.sleep(POLL_SECONDS)

    def _identify(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask new nodes for the names of their clients; one that fails is asked again in the next round."""
        if not nodes:
            return
        messages = [message(WHO_ARE_YOU, node, QUESTION, 0) for node in nodes]
        for reply in grid.send_and_receive(messages, timeout=IDENTIFY_SECONDS):
            if not reply.has_error():
                node = reply.metadata.src_node_id
                client, _ = identity(reply.content)
                self._names[node] = str(node if client is None else client)

    def _messages(
        self, server_round: int, asked: Sequence[tuple[ClientProxy, Any]], config: ConfigRecord, kind: str
    ) -> list[Message]:
        """Put instructions into messages."""
        self._asked = {proxy.node_id: proxy for proxy, _ in asked}
        contents = packed(asked)
        return [
            message(with_scalars(contents[proxy.cid], config), node, kind, server_round)
            for node, proxy in self._asked.items()
        ]

    def _received(
        self, server_round: int, replies: Iterable[Message], wanted: type[Res], kind: str
    ) -> tuple[list[tuple[ClientProxy, Res]], list[tuple[ClientProxy, Res] | BaseException]]:
        """Sort replies into results and failures; errors of the SuperLink do not name the client."""
        waiting, why = dict(self._asked), dict.fromkeys(self._asked, "no reply")
        results: list[tuple[ClientProxy, Res]] = []
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in waiting:
                continue
            result = reply.error.reason or "failed" if reply.has_error() else unpacked(reply.content, kind)
            if isinstance(result, wanted):
                results.append((waiting.pop(node), result))
            else:
                why[node] = str(result)
        failures: list[tuple[ClientProxy, Res] | BaseException] = []
        for node, proxy in waiting.items():
            failures.append(ClientFailure(proxy.cid, why[node]))
            _log(logging.WARNING, f"round {server_round}: {failures[-1]}")
        return results, failures


def _numbers(metrics: Mapping[str, Any]) -> MetricRecord:
    """Return what a `MetricRecord` can hold."""
    kept = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    return MetricRecord({key: value if type(value) is int else float(value) for key, value in kept.items()})


def _log(level: int, text: str) -> None:
    logging.getLogger("flwr").log(level, text)
