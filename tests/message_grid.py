"""A Grid that carries real messages to clients in this process."""

from collections.abc import Iterable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

NODES = [1000 - 7 * k for k in range(10)]  # node numbers say nothing of the clients


class HereGrid(Grid):
    """Carries messages to the ClientApp of each node, in this process.

    `away` are, by how often was asked who is online, the clients that are not; `failing`, by round, those for
    whom the SuperLink answers with an error, and `silent` those who do not answer.
    """

    def __init__(self, app: ClientApp, away: Any = (), failing: Any = (), silent: Any = ()) -> None:
        self.app, self.asked, self.sent = app, 0, 0
        self.away, self.failing, self.silent = (dict(kind) for kind in (away, failing, silent))
        self.contexts = {
            node: Context(1, node, {"partition-id": k, "num-partitions": 10}, RecordDict(), {})
            for k, node in enumerate(NODES)
        }

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return [node for k, node in enumerate(NODES) if k not in self.away.get(self.asked, ())]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            client = NODES.index(message.metadata.dst_node_id)
            if message.metadata.message_type.startswith("train"):
                self.sent += 1
                number = int(message.metadata.group_id)
                if client in self.silent.get(number, ()):
                    continue
                if client in self.failing.get(number, ()):
                    reply = Message(Error(3, "out of memory"), reply_to=message)
                    reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's own replies have
                    replies.append(reply)
                    continue
            received = deepcopy(message)  # clients may change what they get
            try:
                replies.append(self.app(received, self.contexts[message.metadata.dst_node_id]))
            except Exception as reason:
                replies.append(Message(Error(2, repr(reason)), reply_to=message))
        return replies[::-1]

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("`start` needs no more than that")

    set_run = create_message = push_messages = pull_messages = _refuse


def identify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell this process what Flower tells that of a ServerApp: messages are made with it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
