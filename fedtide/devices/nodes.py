"""Which node of Flower speaks for which client: a board is its `client-id`, whatever node it returns as."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from fedtide.base.wording import plain
from fedtide.devices.identities import Identities, Identity, Start

PATIENCE_SECONDS = 180.0  # for the first answer, which also fetches the app; doubled each time
MAX_PATIENCE_SECONDS = 3600.0
# Of the patience, after which the next question is sent. A plain `flower-supernode` that got a task of a run
# just stopped sends each answer with the next message only: the one to the first question has to count then.
ASK_AGAIN = 0.8


class NodeInfo(Protocol):
    """What Flower says of a node that is online."""

    node_id: int
    name: str  # under which its key was registered, if it was
    last_activated_at: str


@dataclass
class Node:
    """What is known of a node since it was started."""

    name: str  # under which its key was registered, else its number
    is_registered: bool
    start: Start
    said: Identity | None  # also if it was before its start
    patience: float  # seconds that the next question may take
    ask_at: float = 0.0  # when it is to be asked next
    reported: bool = False  # whether it has been named in a record
    left: bool = False  # whether its client has said that it leaves

    @property
    def claim(self) -> int | None:
        """The client that it says it is."""
        return None if self.said is None else self.said.client


class Nodes:
    """The nodes that have been online, and the clients 0..N-1 that they speak for.

    Of two nodes with one `client-id`, the first keeps it for as long as it is online. A client whose node was
    registered stays bound to the name, under which the board may get another key. `earlier` has what nodes
    have said in earlier runs.
    """

    def __init__(self, num_clients: int, earlier: Identities | None = None) -> None:
        self.num_clients, self._earlier = num_clients, earlier
        self.of_client: dict[int, int] = {}  # the node that speaks for each client; it may be offline
        self.events: list[dict[str, Any]] = []  # of nodes that were refused or do not identify themselves
        self._known: dict[int, Node] = {}
        self._online: set[int] = set()
        self._name_of: dict[int, str] = {}  # of those that were registered

    def look(self, online: Iterable[NodeInfo]) -> list[int]:
        """Note which nodes are online; return those that were restarted since the last look."""
        restarted = []
        self._online = set()
        for info in online:
            node, before = info.node_id, self._known.get(info.node_id)
            self._online.add(node)
            start = Start(node, info.last_activated_at)
            if before is None or before.start != start:
                name, is_registered = info.name or str(node), bool(info.name)
                said = before.said if before else None
                self._known[node] = Node(name, is_registered, start, said, PATIENCE_SECONDS)
                restarted += [node] if before else []
                if self._earlier and (said := self._earlier.of(start)):
                    self.answer(node, *said)
        for node in sorted(self._online):  # whose client's earlier node may have gone offline
            self._settle(node)
        return restarted

    def to_ask(self, now: float) -> dict[int, float]:
        """Return the nodes that have to identify themselves, and the seconds that each has for its answer."""
        asked = {}
        for node in sorted(self._online):
            known = self._known[node]
            if known.ask_at <= now:
                asked[node] = known.patience
                known.ask_at = now + ASK_AGAIN * known.patience
                known.patience = min(2 * known.patience, MAX_PATIENCE_SECONDS)
        return asked

    def expects(self) -> bool:
        """Whether a node that is online has still to give its first answer."""
        known = (self._known[node] for node in self._online)
        return any(node.claim is None and not node.reported for node in known)

    def answer(self, node: int, client: Any, one_object: bool, seconds: float) -> None:
        """Take in what a node says of itself, and the seconds that its answer took."""
        if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < self.num_clients:
            self.no_answer(node, f"its client-id is {client!r}, not one of 0..{self.num_clients - 1}")
            return
        known = self._known[node]
        if known.claim != client:
            if known.claim is not None and self.of_client.get(known.claim) == node:
                del self.of_client[known.claim]
            known.reported = False
        known.ask_at, known.said = math.inf, Identity(client, one_object, seconds)
        self._settle(node)

    def no_answer(self, node: int, reason: str) -> None:
        """Note that a node did not identify itself."""
        self._report(node, {"event": "unidentified-node", "reason": reason})

    def leave(self, client: int) -> None:
        """Note that a client leaves for good: until its node is started again."""
        if client in self.of_client:  # or its board is another client by now
            self._known[self.of_client[client]].left = True

    def clients(self) -> set[int]:
        """Return the clients whose nodes are online."""
        online = {client: node for client, node in self.of_client.items() if node in self._online}
        return {client for client, node in online.items() if not self._known[node].left}

    def identity(self, client: int) -> Identity:
        """Return what the node has said that speaks for a client."""
        said = self._known[self.of_client[client]].said
        assert said is not None, "it speaks for the client that it has said"
        return said

    def names(self) -> dict[str, str]:
        """Return the names under which the keys of nodes are registered, by the client they speak for."""
        speakers = ((client, self._known[node]) for client, node in sorted(self.of_client.items()))
        return {str(client): plain(known.name, 63) for client, known in speakers if known.is_registered}

    def keep(self) -> None:
        """Keep who speaks for which client, for later runs."""
        if self._earlier:
            speakers = self.of_client.items()
            self._earlier.keep({self._known[node].start: self.identity(k) for k, node in speakers})

    def unidentified(self) -> list[str]:
        """Return the names of the nodes that are online and speak for no client."""
        return [self._known[node].name for node in sorted(self._online - {*self.of_client.values()})]

    def _settle(self, node: int) -> None:
        """Let a node speak for the client that it claims to be, if any, or refuse it."""
        known = self._known[node]
        client = known.claim
        if client is None:
            return
        holder, name = self.of_client.get(client), self._name_of.get(client)
        if name is not None and not (known.is_registered and known.name == name):
            reason = f"client {client} is registered as {plain(name, 63)}"
        elif holder is not None and holder != node and holder in self._online:
            reason = f"client {client} is there already, as node {self._known[holder].name}"
        else:
            self.of_client[client] = node
            if known.is_registered:
                self._name_of[client] = known.name
            return
        self._report(node, {"event": "refused-node", "client": client, "reason": reason})

    def _report(self, node: int, event: dict[str, Any]) -> None:
        """Name a node in the record, once."""
        known = self._known[node]
        if not known.reported:
            self.events.append({**event, "node": known.name})
            known.reported = True
