"""Stock Flower on its Simulation Runtime, written like its own examples, with one CPU core per client."""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import FitIns, FitRes, Parameters, ndarrays_to_parameters
from flwr.server import Server, ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as MessageFedAvg
from flwr.simulation import run_simulation
from numpy.typing import NDArray

from benchmarks.measure import JOB, Clock, Job
from benchmarks.workloads import Trainer, build_model

ROUNDS_PER_SECOND = 50  # more than Flower reaches; rounds after the time is up have no clients


@cache
def trainer() -> Trainer:
    """Return this process's model and data."""
    return Trainer(json.loads(os.environ[JOB]))


# The classic API


class StockClient(NumPyClient):
    """A client as in Flower's PyTorch quickstart."""

    def __init__(self, client: int) -> None:
        self.client = client

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train from the global weights."""
        model = trainer().model
        names = model.state_dict()
        state = {name: torch.from_numpy(a) for name, a in zip(names, parameters, strict=True)}
        model.load_state_dict(state)
        examples = trainer().train(self.client)
        return [value.numpy() for value in model.state_dict().values()], examples, {}


def client_fn(context: Context) -> Client:
    """Make the client of a node."""
    return StockClient(int(context.node_config["partition-id"])).to_client()


class TimedFedAvg(FedAvg):
    """FedAvg that records each round's end, and selects no clients after enough rounds."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.job, self.clock = job, clock
        super().__init__(
            fraction_fit=job["clients_per_round"] / job["num_clients"],
            fraction_evaluate=0.0,
            min_fit_clients=job["clients_per_round"],
            min_evaluate_clients=0,
            min_available_clients=job["num_clients"],
            initial_parameters=ndarrays_to_parameters(
                [value.numpy() for value in build_model(job).state_dict().values()]
            ),
        )

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Sample clients."""
        return [] if self.clock.enough else super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """Average, and record the end of the round."""
        if len(results) != self.job["clients_per_round"]:
            raise RuntimeError(f"{len(results)} results; failures: {failures[:1]}")
        aggregated = super().aggregate_fit(server_round, results, failures)
        self.clock.tick()
        return aggregated


def classic_server(job: Job, clock: Clock) -> ServerApp:
    """Return a ServerApp with Flower's `Server`; if tuned, with one thread per selected client."""

    def server_fn(context: Context) -> ServerAppComponents:
        server = Server(client_manager=SimpleClientManager(), strategy=TimedFedAvg(job, clock))
        if job["api"] == "tuned":
            server.set_max_workers(job["clients_per_round"])
        return ServerAppComponents(server=server, config=ServerConfig(num_rounds=_rounds(job)))

    return ServerApp(server_fn=server_fn)


# The Message API

message_client = ClientApp()


@message_client.train()
def train(message: Message, context: Context) -> Message:
    """Train from the global weights."""
    model = trainer().model
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    examples = trainer().train(int(context.node_config["partition-id"]))
    content = RecordDict()
    content["arrays"] = ArrayRecord(model.state_dict())
    content["metrics"] = MetricRecord({"num-examples": examples})
    return Message(content=content, reply_to=message)


class TimedMessageFedAvg(MessageFedAvg):
    """The Message API's FedAvg that records each round's end, and selects no clients after enough rounds."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.job, self.clock = job, clock
        super().__init__(
            fraction_train=job["clients_per_round"] / job["num_clients"],
            fraction_evaluate=0.0,
            min_train_nodes=job["clients_per_round"],
            min_available_nodes=job["num_clients"],
        )

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        """Sample clients."""
        return [] if self.clock.enough else super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average, and record the end of the round."""
        replies = list(replies)
        good = sum(not reply.has_error() for reply in replies)
        if replies and good != self.job["clients_per_round"]:
            raise RuntimeError(f"{good} of {len(replies)} replies are without error")
        aggregated = super().aggregate_train(server_round, replies)
        if replies:
            self.clock.tick()
        return aggregated


def message_server(job: Job, clock: Clock) -> ServerApp:
    """Return a ServerApp that starts the strategy."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        initial = ArrayRecord(build_model(job).state_dict())
        strategy = TimedMessageFedAvg(job, clock)
        strategy.start(grid, initial, num_rounds=_rounds(job), train_config=ConfigRecord())

    return app


def run(job: Job, clock: Clock) -> None:
    """Run the job's `api`: classic, tuned or message."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    message = job["api"] == "message"
    run_simulation(
        server_app=message_server(job, clock) if message else classic_server(job, clock),
        client_app=message_client if message else ClientApp(client_fn=client_fn),
        num_supernodes=job["num_clients"],
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


def _rounds(job: Job) -> int:
    return int(job["rounds"] + 1 if job["rounds"] else max(10, job["seconds"] * ROUNDS_PER_SECOND))
