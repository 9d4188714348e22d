"""The client that trains with PyTorch under `flwr run`, in simulation and on devices."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

from flwr.app import Context

from clients.client import FlexibleClient
from clients.device.local_task import local_clients
from clients.device.node import Node, make_node
from clients.rules import usable_memory
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from clients.single import Asked, Trained
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.ground.contract import Scalar, metrics
from traces import Trace

log = logging.getLogger("flwr")


@lru_cache(maxsize=1)
def environment(settings: Settings) -> tuple[VirtualClients, Trace]:
    """Load the clients' data, model and trace, once per process."""
    federation = Federation.of(settings)
    made = (federation.data, federation.model_builder(), settings.seed)
    return VirtualClients(ClientEnvironment(*made, cohort=settings.cohort)), federation.trace


class TorchClient(FlexibleClient):
    """A client that trains with PyTorch, on a part of the run's data or on its device's own.

    Where the task says so, as in a simulation, it is there only as much as the run's trace says.
    """

    def __init__(self, settings: Settings, node: Node) -> None:
        super().__init__(node)
        self.settings = settings.for_clients()
        self.trace = None if node.data else environment(self.settings)[1]

    def train(self, asked: Asked) -> Trained | str:
        config, client = asked.config, self.node.client
        trace = self.trace if config.replay else None
        completion = 1.0 if config.completion is None else config.completion
        if trace is not None and config.completion is None:
            completion = float(trace.round(config.round).completion[client])
        clients = self._clients(asked)
        job = self._job(clients, asked, completion)
        start = time.monotonic()
        answers = clients.fit(*job)
        seconds = time.monotonic() - start
        if answers.failures:
            (failure,) = answers.failures
            if failure.trace:
                _show(failure.trace)
            return failure.reason
        told: dict[str, Any] = {metrics.CLIENT_ID: client, metrics.ROUND: config.round}
        for row in answers.reported:
            told = metrics.of_row(row)
        memory = next(iter(answers.memories), None)
        local = [part for vector in answers.vectors if len(vector) for part in clients.model.split(vector)]
        own = [array for arrays in (*answers.extra, *answers.farewells.values()) for array in arrays]
        lost = trace is not None and bool(trace.lost(config.round)[client])
        reported = {**told, metrics.RULE: config.rule}
        return Trained([*local, *own], reported, memory, int(clients.data.sizes[client]), seconds, lost)

    def score(self, asked: Asked) -> tuple[float, int, dict[str, Scalar]] | str:
        clients = self._clients(asked)
        answers = clients.evaluate(*self._job(clients, asked, completion=0.0))
        if answers.failures:
            return answers.failures[0].reason
        (score,) = answers.scores
        return score.loss, score.num_examples, score.metrics

    def _clients(self, asked: Asked) -> VirtualClients:
        if self.node.data is None:
            return environment(self.settings)[0]
        shapes = tuple(array.shape for array in asked.weights)
        return local_clients(self.settings, self.node.data, self.node.client, shapes)

    def _job(self, clients: VirtualClients, asked: Asked, completion: float) -> tuple[Broadcast, list[Job]]:
        config, size = asked.config, clients.model.num_trainable
        memory = usable_memory(asked.memory, config.rule, size, clients.dtype)
        job = Job(self.node.client, asked.own, config, completion, memory)
        return Broadcast(asked.vector), [job._replace(until=asked.until, stop=self.node.stopping)]


@lru_cache  # once in a process
def _show(trace: str) -> None:
    log.error("%s", trace)


def client_fn(context: Context) -> TorchClient:
    """Make the client of a node; see clients/device/node.py for its node config."""
    settings = Settings.from_mapping(context.run_config, "run-config")
    return TorchClient(settings, make_node(context, settings.num_clients))
