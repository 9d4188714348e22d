"""The client that trains with PyTorch under `flwr run`, in simulation and on devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context
from torch import nn

from clients.client import FlexibleClient
from clients.device.local_data import DataSpec, LocalData, read
from clients.device.node import Node, make_node
from clients.draws import client_rng
from clients.gradients.flat import FlatModel
from clients.rules import usable_memory
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from clients.single import Asked, Trained
from fedtide.base.contract import Scalar, metrics
from fedtide.config import Settings
from fedtide.federation import Federation, ModelEnds
from fedtide.tasks import CROSS_ENTROPY, PartitionedData, SquaredError
from traces import Trace

log = logging.getLogger("flwr")

Shapes = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1)
def environment(settings: Settings, device: str) -> tuple[VirtualClients, Trace]:
    """Load the clients' data, model and trace, once per process."""
    federation = Federation.of(settings)
    made = (federation.data, federation.model_builder(), settings.seed, device, settings.cohort)
    clients = VirtualClients(ClientEnvironment(*made, precision=settings.precision))
    return clients, federation.trace


class TorchClient(FlexibleClient):
    """A client that trains with PyTorch, on a part of the run's data or on its device's own.

    Where the task says so, as in a simulation, it is there only as much as the run's trace says.
    """

    def __init__(self, settings: Settings, node: Node) -> None:
        super().__init__(node)
        self.settings = settings.for_clients()
        self.trace = None if node.data else environment(self.settings, node.device)[1]

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
            return environment(self.settings, self.node.device)[0]
        shapes = tuple(array.shape for array in asked.weights)
        node, done = self.node, asked.config.preprocessing
        return local_clients(self.settings, node.data, node.client, node.device, shapes, done)

    def _job(self, clients: VirtualClients, asked: Asked, completion: float) -> tuple[Broadcast, list[Job]]:
        config, size = asked.config, clients.model.num_trainable
        memory = usable_memory(asked.memory, config.rule, size, clients.dtype)
        job = Job(self.node.client, asked.own, config, completion, memory)
        return Broadcast(asked.vector), [job._replace(until=asked.until, stop=self.node.stopping)]


@lru_cache(maxsize=1)
def local_clients(
    settings: Settings, spec: DataSpec, client: int, device: str, shapes: Shapes, preprocessing: str
) -> VirtualClients:
    """Make a trainer of the run's model on a device's own examples.

    `shapes` are those of the tensors that the server has sent, which say how many classes the model has, and
    `preprocessing` what its task does to its data. A ValueError says that the model of the settings is not
    the server's on these examples.
    """
    data = read(spec, preprocessing)
    num_outputs, build = _matching(Federation.of(settings), data, shapes)
    data.check(int(np.prod(data.x.shape[1:])), num_outputs)
    divided = _of_one(settings, data, client, num_outputs)
    made = (divided, build, settings.seed, device, settings.cohort)
    return VirtualClients(ClientEnvironment(*made, precision=settings.precision))


def _of_one(settings: Settings, data: LocalData, client: int, num_outputs: int) -> PartitionedData:
    """Return a device's examples as those of one of N clients; the others have none here."""
    holds_out = settings.evaluate_on != "test" or bool(settings.evaluate_clients)
    share = settings.holdout if holds_out else 0.0
    kept, held = data.hold_out(share, client_rng(settings.seed, b"holdout", client, 0))
    own = np.concatenate([kept.x, held.x]), np.concatenate([kept.y, held.y])
    clients = np.arange(settings.num_clients + 1)
    return PartitionedData(
        own,
        (kept.x, kept.y),  # a device has no other test examples
        num_outputs,
        np.arange(len(data.y)),
        np.where(clients > client, len(data.y), 0),
        np.where(clients[:-1] == client, len(kept.y), 0),
        share if len(held.y) else 0.0,
        CROSS_ENTROPY if data.unit is None else SquaredError(data.unit),
    )


def _matching(federation: Federation, data: LocalData, shapes: Shapes) -> tuple[int, Callable[[], nn.Module]]:
    """Return the number of outputs for which the model has tensors of these shapes, and what makes it.

    The last tensor that is trained has as many rows as there are outputs, in all but unusual models.
    """
    input_shape = data.x.shape[1:]

    def shapes_with(num_outputs: int) -> tuple[int, Shapes]:
        model = FlatModel(federation.model_builder(ModelEnds(input_shape, num_outputs, data.vocabulary))())
        return sum(p.requires_grad for p in model.module.parameters()), model.shapes

    trained, _ = shapes_with(data.num_classes or 2)
    num_outputs = shapes[trained - 1][0] if 0 < trained <= len(shapes) and shapes[trained - 1] else 0
    _, own = shapes_with(num_outputs) if num_outputs else (0, ())
    if own != shapes:
        sent = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
        raise ValueError(
            f"{data.source}: examples of shape {input_shape} do not fit the run's model "
            f"{federation.model_name}, whose tensors are {sent}; prepare them as the server's task has them"
        )
    return num_outputs, federation.model_builder(ModelEnds(input_shape, num_outputs, data.vocabulary))


@lru_cache  # once in a process
def _show(trace: str) -> None:
    log.error("%s", trace)


def client_fn(context: Context) -> TorchClient:
    """Make the client of a node; see clients/device/node.py for its node config."""
    settings = Settings.from_mapping(context.run_config, "run-config")
    return TorchClient(settings, make_node(context, settings.num_clients))
