"""Flower's own Grid and link state, in memory, with nodes that are threads and answer as a test says."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.client import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    GetPropertiesRes,
    MessageTypeLegacy,
    Status,
    ndarrays_to_parameters,
)
from flwr.compat.common import recorddict_compat as compat
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedtide.devices.deadlines import RoundDeadlines
from fedtide.devices.event_grid import EventGrid
from fedtide.devices.grid import GridTransport

OK = Status(Code.OK, "")
Answer = Callable[[FitIns], FitRes | None] | ClientApp


def trained(ins: FitIns, **told: Any) -> FitRes:
    """What a client answers that did all steps; `steps` and others as given."""
    return FitRes(OK, ins.parameters, 10, {key.replace("_", "-"): value for key, value in told.items()})


class Federation:
    """Flower's link state with nodes that answer at once, when a test says, or never."""

    def __init__(self) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state: Any = factory.state()
        run = self.state.create_run(
            None, None, None, {"seed": 1}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(self.state.get_run_info(run_ids=[run])[0])
        self.seen: dict[int, list[FitIns]] = {}
        self._stop, self._threads = threading.Event(), []

    def node(self, client: Any, work: Answer = trained, key: bytes = b"", name: str | None = None) -> int:
        """Start a node that says that it is this client; `client` may be a function, which may wait."""
        key = key or np.random.default_rng(len(self._threads)).bytes(32)
        node = self.state.create_node("", "", key, 30.0, name=name)
        self.state.activate_node(node, 30.0)
        self.seen[node] = []
        thread = threading.Thread(target=self._serve, args=(node, client, work), daemon=True)
        self._threads.append(thread)
        thread.start()
        return node

    def stop(self, node: int) -> None:
        self.state.deactivate_node(node)

    def again(self, node: int) -> None:
        self.state.activate_node(node, 30.0)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)  # one of a test that failed may wait for ever

    def hang(self, ins: FitIns) -> None:
        """Never answer."""
        self._stop.wait()

    def _serve(self, node: int, client: Any, work: Answer) -> None:
        """Handle one message at a time, as a SuperNode does."""
        while not self._stop.wait(0.01):
            for message in self.state.get_message_ins(node, 1):
                reply = self._reply(message, node, client, work)
                if reply is not None:
                    reply.metadata.__dict__["_message_id"] = f"reply to {message.metadata.message_id}"
                    self.state.store_message_res(reply)

    def _reply(self, message: Message, node: int, client: Any, work: Answer) -> Message | None:
        if isinstance(work, ClientApp):
            run, told = {"num-clients": len(self.seen)}, {"client-id": client}
            return work(message, Context(self.grid.run.run_id, node, told, RecordDict(), run))
        try:
            if message.metadata.message_type == MessageTypeLegacy.GET_PROPERTIES:
                said = client() if callable(client) else client
                content = compat.getpropertiesres_to_recorddict(GetPropertiesRes(OK, {"client-id": said}))
                return Message(content, reply_to=message)
            if message.metadata.message_type == MessageType.EVALUATE:
                return None
            self.seen[node].append(compat.recorddict_to_fitins(message.content, keep_input=True))
            result = work(self.seen[node][-1])
            if result is None or self._stop.is_set():
                return None
            return Message(compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)
        except ZeroDivisionError:
            return Message(Error(2, "the client app raised"), reply_to=message)


def transport(federation: Federation, num_clients: int = 4, seconds: float = 60.0, **options: Any) -> Any:
    made = GridTransport(federation.grid, num_clients, RoundDeadlines(seconds), **options)
    made.connect(np.arange(num_clients), 60.0, len(federation.seen))
    return made


def transport_in_event_time(
    federation: Federation, num_clients: int, replies: int, seconds: float = 60.0
) -> EventGrid:
    made = EventGrid(federation.grid, num_clients, RoundDeadlines(seconds), replies, num_clients)
    made.connect(np.arange(num_clients), 60.0, len(federation.seen))
    return made


def ask(nodes: GridTransport, server_round: int, *clients: int) -> tuple[dict[int, FitRes], dict[str, str]]:
    """Have clients train in a round."""
    ins = FitIns(ndarrays_to_parameters([np.zeros(2, np.float32)]), {"round": server_round})
    results, failures = nodes.fit(server_round, [(nodes.proxy(k), ins) for k in clients], None)
    answers = zip(map(int, results.names), results.results, strict=True)
    return dict(answers), {f.client: f.reason for f in failures}


def eventually(happens: Callable[[], Any]) -> None:
    limit = time.monotonic() + 120
    while not happens():
        assert time.monotonic() < limit
        time.sleep(0.01)


def after(event: threading.Event, **told: Any) -> Answer:
    """Answer when something has happened."""

    def work(ins: FitIns) -> FitRes:
        event.wait()
        return trained(ins, **told)

    return work
