"""The nodes of an app as clients of a method: who is there, and what they are called."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import sleep

from flwr.common import FitRes
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

from fedtide.base.contract import metrics
from fedtide.base.errors import SettingsError
from fedtide.base.specs import bind, trace_specs
from fedtide.devices.flower_compat import node_proxy
from strategies import FlexibleStrategy
from traces import TRACES, Trace
from traces.base import availability_in
from traces.compose import combined

IDENTITY = (metrics.CLIENT_ID, "partition-id")  # where replies may say which client it is

log = logging.getLogger("flwr")


class PresentNodes(SimpleClientManager):
    """Nodes of one round, of which no more come before the next one."""

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Return whether so many are there, at once."""
        return self.num_available() >= num_clients


class AppNodes:
    """Nodes that come and go, and maybe are there only when a trace says so.

    Attributes
    ----------
    manager
        Those that a method may ask in the round, by the names of their clients.
    names
        The clients' names by node, in the order in which the nodes came.
    lost
        Nodes whose replies the trace loses in the round.
    traced
        The clients of the trace in their order, by name; others are always there.
    """

    def __init__(self, trace: str, seed: int) -> None:
        self.manager = PresentNodes()
        self.names: dict[int, str] = {}
        self.lost: set[int] = set()
        self.traced: list[str] = []
        self._spec, self._seed = trace, seed
        self._parts = [bind("trace", TRACES, spec) for spec in trace_specs(trace)] if trace else []
        if any(part.takes("label_shares") for part in self._parts):
            raise SettingsError(f"trace {trace}: it needs the clients' labels, which an app's server has not")
        self._trace: Trace | None = None
        self._here: dict[int, ClientProxy] = {}
        self._first = set[int]()  # nodes that were there when the trace began

    def connect(self, grid: Grid, least: int) -> int:
        """Wait for so many nodes, as Flower does; return how many there are."""
        told = -1
        while len(nodes := sorted(grid.get_node_ids())) < least:
            if len(nodes) != told:
                told = len(nodes)
                log.info("Waiting for nodes to connect: %d connected (minimum required: %d).", told, least)
            sleep(1)
        if self.names and not self.names.keys() & {*nodes}:
            log.warning(
                "none of the nodes here is known; their clients are new until their replies name them"
            )
        for node in nodes:
            self.names.setdefault(node, f"node {node}")
        self._here = {node: node_proxy(grid, node, self.names[node]) for node in nodes}
        return len(nodes)

    def begin(self, server_round: int) -> None:
        """Let the manager have the nodes that are there in a round."""
        there = self._there(server_round)
        for name, proxy in [*self.manager.all().items()]:
            if there.get(proxy.node_id) != name:
                self.manager.unregister(proxy)
        for node in there:
            self.manager.register(self._here[node])  # does nothing if it is registered

    def _there(self, server_round: int) -> dict[int, str]:
        """Return those that the trace has there; note whose replies it loses."""
        there = {node: self.names[node] for node in self._here}
        if not self._parts:
            return there
        if self._trace is None:
            self.traced = self.traced or [*there.values()]
            self._first = {*there}
            self._trace = combined([part.build(len(self.traced), self._seed) for part in self._parts])
        self._tell_of_others(there)
        now, lost = availability_in(self._trace, server_round), self._trace.lost(server_round)
        if self._trace.has_late_replies or ((now.completion > 0) & (now.completion < 1)).any():
            raise SettingsError(
                f"trace {self._spec} has clients that are late or do a part of their work, which those of an "
                "app cannot be told; take one such as markov, in which they are there or not"
            )
        lost |= now.completion == 0
        away = {name for name, online in zip(self.traced, now.online, strict=True) if not online}
        losing = {name for name, loses in zip(self.traced, lost, strict=True) if loses}
        self.lost = {node for node, name in there.items() if name in losing - away}
        return {node: name for node, name in there.items() if name not in away}

    def _tell_of_others(self, there: Mapping[int, str]) -> None:
        """Say once of each node that comes later that the trace does not know it."""
        others = [node for node, name in there.items() if name not in self.traced and node not in self._first]
        self._first.update(others)
        if others:
            log.warning(
                "trace %s is of the %d clients that were there at first; others are always there (node %s): "
                "raise min_available_nodes",
                *(self._spec, len(self.traced), ", ".join(map(str, others))),
            )

    def identify(self, node: int, proxy: ClientProxy, result: FitRes, method: FlexibleStrategy) -> None:
        """Call a client by the name that its reply says; ValueError: another node that is here has it."""
        said = next((result.metrics[key] for key in IDENTITY if key in result.metrics), proxy.cid)
        name = str(int(said)) if isinstance(said, float) and said.is_integer() else str(said)
        if name == proxy.cid:
            return
        if name in self.manager.all():
            raise ValueError(f"it says that it is client {name}, as another node does")
        known = method.roster.find(name)
        if method.rule.remembers and known is not None and method.roster.accepted[known]:
            result.metrics[metrics.RESYNC] = True  # the task was that of a new client, which has no memory
        method.membership.identify(proxy.cid, name)
        self.manager.unregister(proxy)
        if proxy.cid in self.traced and name not in self.traced:
            self.traced[self.traced.index(proxy.cid)] = name
        proxy.cid = self.names[node] = name
        self.manager.register(proxy)
