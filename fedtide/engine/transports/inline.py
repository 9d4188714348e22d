"""The transport to virtual clients in this process: for tests, debugging and machines without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from clients.memory.handshake import Memory
from clients.memory.spill import Memories
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, Scores, VirtualClients
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.virtual import Simulation, VirtualTransport


class InlineTransport(VirtualTransport):
    """Simulates all clients in this process."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.clients = VirtualClients(simulation.environment)
        self.stored = Memories()  # in RAM, or in a file

    def store(self, client: int, memory: Memory) -> Any:
        with _storing():
            return self.stored.store(client, memory)

    def read(self, stored: Any) -> Memory:
        return cast(Memory, self.clients.load(stored))

    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Answers]:
        with _storing():  # errors of clients are caught inside
            answers = self.clients.fit(broadcast, jobs)
        yield answers

    def run_evaluation(self, broadcast: Broadcast, jobs: list[Job]) -> list[Scores]:
        with _storing():
            return [self.clients.evaluate(broadcast, jobs)]


@contextmanager
def _storing() -> Iterator[None]:
    """Turn errors of the disk for the clients' memories into `EngineLost`."""
    try:
        yield
    except OSError as error:
        raise EngineLost(f"the memories of clients cannot be stored or read: {error}") from error
