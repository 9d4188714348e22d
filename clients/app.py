"""The Flower ClientApp: a client of `flwr run`, in simulation and on devices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from flwr.app import Context
from flwr.client import Client, ClientApp
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
    parameters_to_ndarrays,
)

from clients.environment import client_settings, federated_data, make_trace, model_builder
from clients.virtual import Job, VirtualClients
from config import Settings
from traces import Trace

OK = Status(Code.OK, "")


@lru_cache(maxsize=1)
def environment(settings: Settings) -> tuple[VirtualClients, Trace]:
    """Make the client's world; a process that serves several messages makes it once."""
    data = federated_data(settings)
    return VirtualClients(data, model_builder(settings, data), settings.seed), make_trace(settings)


class FlexibleClient(Client):
    """One client: trains on its own data, as far as its availability lets it.

    Parameters
    ----------
    settings
        The run's settings.
    client
        Which client this is, 0..N-1.
    """

    def __init__(self, settings: Settings, client: int) -> None:
        self.client = client
        self.player, self.trace = environment(client_settings(settings))

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Say which client this is."""
        return GetPropertiesRes(OK, {"client-id": self.client})

    def fit(self, ins: FitIns) -> FitRes:
        """Train; a client that drops, fails or loses its reply answers with a status that is not OK."""
        arrays = parameters_to_ndarrays(ins.parameters)
        count = int(ins.config["model-arrays"])
        server_round = int(ins.config["round"])
        completion = float(self.trace.round(server_round).completion[self.client])
        weights = np.concatenate([array.ravel() for array in arrays[:count]])
        job = Job(self.client, arrays[count:], dict(ins.config), completion)
        answers = self.player.fit(weights, [job])
        if answers.failures:
            return _no_reply(answers.failures[0][1])
        if self.trace.lost(server_round)[self.client]:
            return _no_reply("reply lost")
        _, extra, metrics, num_examples = answers.updates[0]
        local = self.player.model.split(answers.vectors[0])
        return FitRes(OK, ndarrays_to_parameters([*local, *extra]), num_examples, dict(metrics))

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Evaluate the weights on this client's hold-out."""
        weights = np.concatenate([array.ravel() for array in parameters_to_ndarrays(ins.parameters)])
        loss, num_examples, accuracy = self.player.evaluate(weights, self.client)
        return EvaluateRes(OK, loss, num_examples, {"accuracy": accuracy})


def _no_reply(reason: str) -> FitRes:
    return FitRes(Status(Code.FIT_NOT_IMPLEMENTED, reason), Parameters([], "numpy.ndarray"), 0, {})


def client_fn(context: Context) -> Client:
    """Make the client of a node: its `client-id`, or in simulation its `partition-id`, says which."""
    settings = Settings.from_mapping(context.run_config, "run-config")
    node = context.node_config
    name = node.get("client-id", node.get("partition-id"))
    if name is None:
        raise ValueError("node-config has no client-id; start the SuperNode with --node-config 'client-id=0'")
    client = int(name)
    if not 0 <= client < settings.num_clients:
        raise ValueError(f"client-id {client} is not in 0..{settings.num_clients - 1} (num-clients)")
    return FlexibleClient(settings, client)


app = ClientApp(client_fn=client_fn)
