"""Messages over Flower's Grid, until they are answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.common import MessageTypeLegacy
from flwr.serverapp import Grid

from fedtide.devices.packing import message

QUESTION = MessageTypeLegacy.GET_PROPERTIES  # the identity of a node
UNKNOWN = -1  # the client of a node that has not been identified


class Sent(NamedTuple):
    """A message that was sent."""

    node: int
    client: int
    kind: str
    round: int
    time: float  # by `time.monotonic`


class Messages:
    """Sends messages and receives the answers, however late they come."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._open: dict[str, Sent] = {}

    def send(
        self, contents: Sequence[tuple[int, int, RecordDict]], kind: str, server_round: int, ttl: float
    ) -> list[int]:
        """Send contents, each with its node and client, all at once; return the clients not reached.

        After `ttl` seconds Flower refuses an answer and reports an error instead.
        """
        now = time.monotonic()  # before Flower's clock starts
        messages = [message(content, node, kind, server_round, ttl) for node, _, content in contents]
        accepted = {*self.grid.push_messages(messages)} if messages else set()
        unreached = []
        for sent, (node, client, _) in zip(messages, contents, strict=True):
            name = sent.metadata.message_id  # which Flower has put in
            if name in accepted:
                self._open[name] = Sent(node, client, kind, server_round, now)
            else:
                unreached.append(client)
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
        """Expect no more answers of a node; return the tasks that it has not answered."""
        given_up = {name: sent for name, sent in self._open.items() if sent.node == node}
        self._open = {name: sent for name, sent in self._open.items() if name not in given_up}
        return [sent for sent in given_up.values() if sent.kind != QUESTION]

    def busy(self) -> dict[int, Sent]:
        """Return the tasks that clients are still at work on, by client."""
        return {sent.client: sent for sent in self._open.values() if sent.kind != QUESTION}
