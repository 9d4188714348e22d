"""Messages over Flower's Grid, until they are answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class Sent(NamedTuple):
    """A message that was sent.

    Attributes
    ----------
    node
        Whom it was sent to.
    client
        The client that the node spoke for; None: that was the question.
    kind
        Its type, as Flower names it.
    round
        The round in which it was sent.
    time
        When it was sent, on the clock of `time.monotonic`.
    """

    node: int
    client: int | None
    kind: str
    round: int
    time: float


class Messages:
    """Sends messages and receives the answers, however late they come.

    Parameters
    ----------
    grid
        The Grid of the ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._open: dict[str, Sent] = {}

    def send(
        self,
        contents: Mapping[int, RecordDict],
        clients: Mapping[int, int],
        kind: str,
        server_round: int,
        ttl: float | None = None,
    ) -> list[int]:
        """Send messages by node, all at once; return the nodes that Flower does not reach any more.

        Parameters
        ----------
        contents
            What each node is sent.
        clients
            The clients that they speak for, where that is known.
        kind
            The type of the messages.
        server_round
            The round.
        ttl
            Seconds after which Flower refuses an answer and reports an error instead; None: 12 hours.
        """
        now, unreached = time.monotonic(), []  # before Flower's clock starts
        messages = {
            node: Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round), ttl=ttl)
            for node, content in contents.items()
        }
        accepted = (
            {name for name in self.grid.push_messages([*messages.values()]) if name} if messages else ()
        )
        for node, message in messages.items():
            name = message.metadata.message_id  # which Flower has put in
            if name in accepted:
                self._open[name] = Sent(node, clients.get(node), kind, server_round, now)
            else:
                unreached.append(node)
        return unreached

    def receive(self) -> Iterator[tuple[Sent, Message | str]]:
        """Yield what has come since the last call: answers, or why there will be none."""
        if not self._open:
            return
        for reply in self.grid.pull_messages([*self._open]):
            sent = self._open.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                yield sent, (reply.error.reason or "failed") if reply.has_error() else reply

    def give_up(self, node: int) -> list[Sent]:
        """Expect no more answers of a node; return the messages that it has not answered."""
        given_up = {name: sent for name, sent in self._open.items() if sent.node == node}
        self._open = {name: sent for name, sent in self._open.items() if name not in given_up}
        return [*given_up.values()]

    def busy(self) -> dict[int, Sent]:
        """Return the messages, by client, that clients are still at work on."""
        return {sent.client: sent for sent in self._open.values() if sent.client is not None}
