"""The transport of `flwr run`: sends all messages of a round in one batch over Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    GetPropertiesIns,
    MessageTypeLegacy,
)
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flexfl.contract import metrics
from flexfl.engine.transports.base import (
    ClientFailure,
    EvaluateInstructions,
    EvaluateResults,
    FitInstructions,
    FitResults,
)
from flexfl.engine.transports.flower_compat import (
    GridClientProxy,
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    getpropertiesins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from strategies.core.instructions import RoundInstructions

POLL_SECONDS = 0.1
Contents = dict[int, RecordDict]


class GridTransport:
    """Reaches clients through Flower's Grid, in simulation and on devices.

    Flower identifies nodes by random numbers. The first time that a node is online, it is asked for the
    index of its client; nodes that do not reply with one are ignored.

    Parameters
    ----------
    grid
        The Grid of the ServerApp.
    num_clients
        N; nodes with an index outside 0..N-1 are ignored.
    """

    def __init__(self, grid: Grid, num_clients: int) -> None:
        self.seconds: Mapping[str, float] = {}
        self.notes: Sequence[str] = ()
        self.grid, self.num_clients = grid, num_clients
        self.node_of: dict[int, int] = {}
        self._asked: set[int] = set()
        self._online: set[int] = set()

    def connect(self, members: NDArray[np.intp], timeout: float) -> None:
        """Wait until these clients are connected; clients that arrive later may also connect later.

        Raises
        ------
        ValueError
            Some are not connected after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while len(np.setdiff1d(members, self.reachable())):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"only {len(self.node_of)} of num-clients={self.num_clients} are connected after "
                    f"{timeout:.0f} s; for a simulation give "
                    f"--federation-config 'num-supernodes={self.num_clients}'"
                )
            time.sleep(POLL_SECONDS)

    def reachable(self) -> NDArray[np.intp]:
        """Return the clients whose nodes are online now, in ascending order."""
        self._online = set(self.grid.get_node_ids())
        unknown = self._online - self._asked
        if unknown:
            self._identify(sorted(unknown))
        return np.array(sorted(k for k, node in self.node_of.items() if node in self._online), np.intp)

    def at_work(self) -> NDArray[np.intp]:
        """Return nobody: a reply that comes after the timeout is not waited for."""
        return np.empty(0, np.intp)

    def proxy(self, client: int) -> ClientProxy:
        """Return the proxy of one client."""
        proxy = GridClientProxy(self.node_of[client], self.grid, self.grid.run.run_id)
        proxy.cid = str(client)
        return proxy

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        """Have clients train."""
        return self._round(server_round, instructions, MessageType.TRAIN, _pack_fit, _unpack_fit, timeout)

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Have clients evaluate."""
        return self._round(
            server_round,
            instructions,
            MessageType.EVALUATE,
            _pack_evaluate,
            recorddict_to_evaluateres,
            timeout,
        )

    def close(self) -> None:
        """Do nothing: Flower closes the Grid."""

    def _round(
        self,
        server_round: int,
        instructions: Any,
        kind: str,
        pack: Callable[[Any], RecordDict],
        unpack: Callable[[RecordDict], Any],
        timeout: float | None,
    ) -> tuple[list[tuple[ClientProxy, Any]], list[ClientFailure]]:
        """Send instructions and sort the replies into results and failures."""
        if not instructions:
            return [], []
        contents = _packed(instructions, pack)
        proxies = {int(proxy.cid): proxy for proxy, _ in instructions}
        results: list[tuple[ClientProxy, Any]] = []
        failures: list[ClientFailure] = []
        for client, reply in self._exchange(contents, kind, str(server_round), timeout).items():
            try:
                if isinstance(reply, str):
                    raise ValueError(reply)
                result = unpack(reply.content)
                if result.status.code != Code.OK:
                    raise ValueError(result.status.message or result.status.code.name)
            except (ValueError, KeyError, TypeError, IndexError) as reason:
                failures.append(ClientFailure(str(client), str(reason)))
            else:
                results.append((proxies[client], result))
        return results, failures

    def _identify(self, nodes: list[int]) -> None:
        """Ask new nodes for the index of their client."""
        content = getpropertiesins_to_recorddict(GetPropertiesIns({}))
        self._asked.update(nodes)
        replies = self._send(dict.fromkeys(nodes, content), MessageTypeLegacy.GET_PROPERTIES, "0", 60.0)
        for node, reply in replies.items():
            if isinstance(reply, str):
                self._asked.discard(node)  # it may have been busy: ask again next time
                continue
            client = recorddict_to_getpropertiesres(reply.content).properties.get(metrics.CLIENT_ID)
            if isinstance(client, int) and 0 <= client < self.num_clients:
                self.node_of[client] = node

    def _exchange(
        self, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float | None
    ) -> dict[int, Message | str]:
        """Send messages by client; return the reply of each client, or why there is none."""
        client_of = {self.node_of[client]: client for client in contents}
        by_node = {self.node_of[client]: content for client, content in contents.items()}
        return {client_of[n]: reply for n, reply in self._send(by_node, kind, group, timeout).items()}

    def _send(
        self, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float | None
    ) -> dict[int, Message | str]:
        """Send messages by node, all at once; return the reply of each node, or why there is none."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=timeout)
            for node, content in contents.items()
        ]
        waiting = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        replies: dict[int, Message | str] = {}
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting and (deadline is None or time.monotonic() < deadline):
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                replies[node] = reply.error.reason or "failed" if reply.has_error() else reply
            if waiting:
                time.sleep(POLL_SECONDS)
        for node in waiting.values():
            replies[node] = f"no reply within {timeout} s"
        return replies


def _pack_fit(instruction: FitIns) -> RecordDict:
    return fitins_to_recorddict(instruction, keep_input=True)


def _unpack_fit(content: RecordDict) -> Any:
    return recorddict_to_fitres(content, keep_input=False)


def _pack_evaluate(instruction: EvaluateIns) -> RecordDict:
    return evaluateins_to_recorddict(instruction, keep_input=True)


def _packed(instructions: Sequence[tuple[ClientProxy, Any]], pack: Callable[[Any], RecordDict]) -> Contents:
    """Pack instructions by client; the one that clients share is packed only once."""
    own = instructions.own if isinstance(instructions, RoundInstructions) else None
    contents: Contents = {}
    common: RecordDict | None = None
    for proxy, instruction in instructions:
        if own is None or proxy.cid in own:
            contents[int(proxy.cid)] = pack(instruction)
        else:
            common = pack(instruction) if common is None else common
            contents[int(proxy.cid)] = common
    return contents
