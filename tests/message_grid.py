"""Flower's classic server, and a Grid that carries real messages, with clients in this process."""

from collections.abc import Iterable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import Client, ClientApp
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

NODES = [1000 - 7 * k for k in range(10)]  # node numbers say nothing of the clients


class HereProxy(ClientProxy):
    """Reaches a client, except in the rounds in which it is absent."""

    def __init__(self, name: str, client: Client, absent: Any = ()) -> None:
        super().__init__(name)
        self.client, self.absent = client, dict(absent)

    def fit(self, ins: Any, timeout: Any, group_id: int | None) -> Any:
        if self.cid in map(str, self.absent.get(group_id, ())):
            raise ConnectionError
        return self.client.fit(ins)

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("clients are asked for nothing else")

    get_properties = get_parameters = evaluate = reconnect = _refuse


def classic(strategy: Any, clients: dict[str, Client], num_rounds: int, absent: Any = ()) -> Any:
    """Run rounds on Flower's classic server; return its history. `absent` are the clients by round."""
    manager = SimpleClientManager()
    for name, client in clients.items():
        manager.register(HereProxy(name, client, absent))
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)  # np.load in two threads fails now and then in Python 3.11 (gh-106905)
    history, _ = server.fit(num_rounds, timeout=None)
    return history


class HereGrid(Grid):
    """Carries messages to the ClientApp of each node, in this process.

    `away` are, by how often was asked who is online, the clients that are not; `failing`, by round, those for
    whom the SuperLink answers with an error, and `silent` those who do not answer.
    """

    def __init__(self, app: ClientApp, away: Any = (), failing: Any = (), silent: Any = ()) -> None:
        self.app, self.asked, self.sent = app, 0, 0
        self.away, self.failing, self.silent = (dict(kind) for kind in (away, failing, silent))
        self.nodes = [*NODES]
        self.contexts = [
            Context(1, node, {"partition-id": k, "num-partitions": 10}, RecordDict(), {})
            for k, node in enumerate(NODES)
        ]

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return [node for k, node in enumerate(self.nodes) if k not in self.away.get(self.asked, ())]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            client = self.nodes.index(message.metadata.dst_node_id)
            if message.metadata.message_type.startswith("train"):
                self.sent += 1
                number = int(message.metadata.group_id or message.content["config"]["server-round"])
                if client in self.silent.get(number, ()):
                    continue
                if client in self.failing.get(number, ()):
                    reply = Message(Error(3, "out of memory"), reply_to=message)
                    reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's own replies have
                    replies.append(reply)
                    continue
            received = deepcopy(message)  # clients may change what they get
            try:
                replies.append(self.app(received, self.contexts[client]))
            except Exception as reason:
                replies.append(Message(Error(2, repr(reason)), reply_to=message))
        return replies[::-1]

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("`start` needs no more than that")

    set_run = create_message = push_messages = pull_messages = _refuse


def identify(monkeypatch: pytest.MonkeyPatch, run: int = 1, node: int = 1) -> None:
    """Tell this process what Flower tells that of a ServerApp: messages are made with it."""
    for name, value in (("run", run), ("node", node), ("task", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", value)
