"""The client that trains with PyTorch under `flwr run`, in simulation and on devices."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
)
from numpy.typing import NDArray

from clients import single
from clients.device.local_task import local_clients
from clients.device.node import Node, make_node
from clients.environment import ClientEnvironment, client_settings, federated_data, make_trace, model_builder
from clients.rules import usable_memory
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import VirtualClients
from fedtide.config import Settings
from fedtide.ground.contract import FitConfig, metrics
from traces import Trace

OK = Status(Code.OK, "")
log = logging.getLogger("flwr")


@lru_cache(maxsize=1)
def environment(settings: Settings) -> tuple[VirtualClients, Trace]:
    """Load the clients' data, model and trace, once per process."""
    data = federated_data(settings)
    build_model = model_builder(settings, data)
    clients = VirtualClients(ClientEnvironment(data, build_model, settings.seed, cohort=settings.cohort))
    return clients, make_trace(settings, data)


class FlexibleClient(Client):
    """One client, which trains on its own data, until the deadline where the task has one.

    Where the task says so, as in a simulation, it is there only as much as the run's trace says.
    """

    def __init__(self, settings: Settings, node: Node) -> None:
        self.settings, self.node, self.client = client_settings(settings), node, node.client
        self.trace = None if node.data else environment(self.settings)[1]

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Return which client this is."""
        return GetPropertiesRes(OK, {metrics.CLIENT_ID: self.client})

    def fit(self, ins: FitIns) -> FitRes:
        """Train; if the client drops out, fails or loses its reply, the status is not OK."""
        start = time.monotonic()
        config, arrays = single.read(ins)
        trace = self.trace if config.replay else None
        completion = 1.0 if config.completion is None else config.completion
        if trace is not None and config.completion is None:
            completion = float(trace.round(config.round).completion[self.client])
        until = None if config.deadline_seconds is None else start + config.deadline_seconds
        clients = self._clients(config, arrays)
        job = self._job(clients, config, arrays, completion, until)
        training = time.monotonic()
        answers = clients.fit(*job)
        seconds = time.monotonic() - training
        if answers.failures:
            (failure,) = answers.failures
            if failure.trace:
                _show(failure.trace)
            return _no_reply(failure.reason)
        (update,) = [*answers.updates, *answers.farewells]
        if update.memory is not None:
            try:
                self.node.keep(config, update.memory)
            except OSError as error:
                return _no_reply(str(error))
        local = [part for vector in answers.vectors if len(vector) for part in clients.model.split(vector)]
        reply = ndarrays_to_parameters([*local, *update.extra])
        if metrics.STEPS in update.metrics:
            self.node.worked(int(update.metrics[metrics.STEPS]), seconds, sum(map(len, reply.tensors)))
        if trace is not None and trace.lost(config.round)[self.client]:
            return _no_reply("reply lost")
        said = {**update.metrics, metrics.RULE: config.rule, **self.node.closing_metrics(config, start)}
        return FitRes(OK, reply, update.num_examples, said)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Evaluate this client's model, the personal one where the method has one, on `own_test`."""
        config, arrays = single.read(ins)
        clients = self._clients(config, arrays)
        answers = clients.evaluate(*self._job(clients, config, arrays, completion=0.0))
        if answers.failures:
            return EvaluateRes(_status(answers.failures[0].reason), 0.0, 0, {})
        (score,) = answers.scores
        return EvaluateRes(OK, score.loss, score.num_examples, score.metrics)

    def _clients(self, config: FitConfig, arrays: list[NDArray[Any]]) -> VirtualClients:
        """Return what trains: on a part of the run's data, or on the device's own."""
        if self.node.data is None:
            return environment(self.settings)[0]
        shapes = tuple(array.shape for array in config.split(arrays)[0])
        return local_clients(self.settings, self.node.data, self.client, shapes)

    def _job(
        self,
        clients: VirtualClients,
        config: FitConfig,
        arrays: list[NDArray[Any]],
        completion: float,
        until: float | None = None,
    ) -> tuple[Broadcast, list[Job]]:
        """Return the weights, and this client's job as a list."""
        parts, own = config.split(arrays)
        weights = np.concatenate([array.ravel() for array in parts])
        size = clients.model.num_trainable
        memory = usable_memory(self.node.memory(config), config.rule, size, clients.dtype)
        job = Job(self.client, own, config, completion, memory, until=until, stop=self.node.stopping)
        return Broadcast(weights), [job]


@lru_cache
def _show(trace: str) -> None:
    """Log a traceback, once in this process."""
    log.error("%s", trace)


def _no_reply(reason: str) -> FitRes:
    return FitRes(_status(reason), Parameters([], "numpy.ndarray"), 0, {})


def _status(reason: str) -> Status:
    return Status(Code.FIT_NOT_IMPLEMENTED, reason)  # Flower has no other status for a failure


def client_fn(context: Context) -> Client:
    """Make the client of a node; see clients/device/node.py for its node config."""
    settings = Settings.from_mapping(context.run_config, "run-config")
    return FlexibleClient(settings, make_node(context, settings.num_clients))
