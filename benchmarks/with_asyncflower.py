"""AsyncFlower's own server and FedBuff, from a checkout of https://github.com/anon8281714-boop/FedStaleAsync.

Its server trains clients in threads as soon as they are given their tasks. It is meant for Flower's
simulation on Ray; here clients are in this process, which is faster, and train in a plain PyTorch loop, with
one thread for each core.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Trainer

_OK = Status(Code.OK, "")


class LocalClient(ClientProxy):
    """A client in this process; each thread trains with a model of its own."""

    own = threading.local()

    def __init__(self, client: int, job: Job) -> None:
        super().__init__(str(client))
        self.client, self.job = client, job

    def get_properties(self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None) -> Any:
        """Return the client's name."""
        return GetPropertiesRes(_OK, {"cid": self.cid})

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Train, and return the weights before minus those after."""
        if not hasattr(self.own, "trainer"):
            self.own.trainer = Trainer(self.job)
        trainer, start = self.own.trainer, parameters_to_ndarrays(ins.parameters)
        values = trainer.model.state_dict().values()
        for value, array in zip(values, start, strict=True):
            value.copy_(torch.from_numpy(array))
        examples = trainer.train(self.client)
        update = [array - value.numpy() for array, value in zip(start, values, strict=True)]
        return FitRes(_OK, ndarrays_to_parameters(update), examples, {})

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """Do nothing: the strategy has initial weights."""

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """Do nothing: there is no evaluation."""

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """Do nothing: the client stays."""


def run(job: Job, clock: Clock) -> None:
    """Run its server; a round ends with the job's `replies`."""
    sys.path.insert(0, str(Path(job["checkout"], "src")))
    from asyncflower.simulation.async_server import (  # type: ignore[import-not-found]
        AsyncServerSimulation,
    )
    from asyncflower.simulation.device import DevicesSimulation  # type: ignore[import-not-found]
    from asyncflower.strategy.fedbuff import FedBuff  # type: ignore[import-not-found]

    logging.getLogger("flwr").setLevel(logging.WARNING)  # it logs four lines a round
    count, manager = job["num_clients"], SimpleClientManager()
    for client in range(count):
        manager.register(LocalClient(client, job))
    times = {str(client): torch.distributions.LogNormal(0.0, 0.5) for client in range(count)}

    class TimedServer(AsyncServerSimulation):  # type: ignore[misc]
        """Records the end of each round, and stops after enough of them."""

        def fit_round(self, server_round: int, timeout: float | None) -> Any:
            """Run a round."""
            result = super().fit_round(server_round, timeout)
            clock.tick()
            if clock.enough:
                self._global_simulation_time = float("inf")  # what it compares with the limit
            return result

    trainer = Trainer(job)
    initial = [value.numpy().copy() for value in trainer.model.state_dict().values()]
    trainer.train(0)  # what PyTorch imports at the first step, two threads must not import at once
    strategy = FedBuff(
        concurrency=job["clients_per_round"],
        buffer_size=job["replies"],
        learning_rate=1.0,
        initial_parameters=ndarrays_to_parameters(initial),
    )
    devices = DevicesSimulation(times)
    server = TimedServer(devices=devices, client_manager=manager, strategy=strategy)
    server.set_max_workers(os.cpu_count())
    server.fit(10**9, timeout=1e18)
