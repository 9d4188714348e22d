"""The Flower ClientApp: a client of `flwr run`, in simulation and on devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

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

from clients.environment import ClientEnvironment, client_settings, federated_data, make_trace, model_builder
from clients.leave import is_leaving
from clients.memory.stores import ContextStore, FileStore, Store
from clients.training import Broadcast, Job, check_memory
from clients.virtual import VirtualClients
from flexfl.config import Settings
from flexfl.contract import FitConfig, Scalar, metrics
from traces import Trace

OK = Status(Code.OK, "")


@lru_cache(maxsize=1)
def environment(settings: Settings) -> tuple[VirtualClients, Trace]:
    """Load the clients' data, model and trace, once per process."""
    data = federated_data(settings)
    build_model = model_builder(settings, data)
    clients = VirtualClients(ClientEnvironment(data, build_model, settings.seed, cohort=settings.cohort))
    return clients, make_trace(settings)


class FlexibleClient(Client):
    """One client, which trains on its own data, until the deadline where the task has one.

    Where the task says so, as in a simulation, it is there only as much as the run's trace says.

    Parameters
    ----------
    settings
        The run's settings.
    client
        Which client this is, 0..N-1.
    store
        Where it keeps its memory.
    record
        Log, or folder of logs, in which it records how fast it trains; empty: none.
    leaving
        Whether it leaves the federation for good; called before each reply.
    """

    def __init__(
        self,
        settings: Settings,
        client: int,
        store: Store,
        record: str = "",
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self.client, self.store, self.record, self.leaving = client, store, record, leaving
        self.clients, self.trace = environment(client_settings(settings))

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Return which client this is."""
        return GetPropertiesRes(OK, {metrics.CLIENT_ID: self.client})

    def fit(self, ins: FitIns) -> FitRes:
        """Train; if the client drops out, fails or loses its reply, the status is not OK."""
        start = time.monotonic()
        config = FitConfig.from_wire(ins.config)
        trace = self.trace if config.replay else None
        completion = 1.0 if trace is None else float(trace.round(config.round).completion[self.client])
        until = None if config.deadline_seconds is None else start + config.deadline_seconds
        job = self._job(ins, config, completion, until)
        training = time.monotonic()
        answers = self.clients.fit(*job)
        seconds = time.monotonic() - training
        if answers.failures:
            return _no_reply(answers.failures[0].reason)
        (update,) = [*answers.updates, *answers.farewells]
        if update.memory is not None:  # stored before the reply is sent: the server may rely on it
            try:
                self.store.of_run(config.run).save(update.memory)
            except OSError as error:
                return _no_reply(f"cannot keep the client's memory: {error}")
        local = [
            part for vector in answers.vectors if len(vector) for part in self.clients.model.split(vector)
        ]
        reply = ndarrays_to_parameters([*local, *update.extra])
        if self.record and metrics.STEPS in update.metrics:
            self._record(int(update.metrics[metrics.STEPS]), seconds, sum(map(len, reply.tensors)))
        if trace is not None and trace.lost(config.round)[self.client]:
            return _no_reply("reply lost")
        reported: dict[str, Scalar] = dict(update.metrics)
        if self.leaving():
            reported[metrics.DEPARTING] = True
        if until is not None:
            reported[metrics.SECONDS] = time.monotonic() - start
        return FitRes(OK, reply, update.num_examples, reported)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Evaluate this client's model, the personal one where the method has one, on `own_test`."""
        config = FitConfig.from_wire(ins.config)
        answers = self.clients.evaluate(*self._job(ins, config, completion=0.0))
        if answers.failures:
            return EvaluateRes(_status(answers.failures[0].reason), 0.0, 0, {})
        (score,) = answers.scores
        return EvaluateRes(OK, score.loss, score.num_examples, score.metrics)

    def _record(self, steps: int, seconds: float, up_bytes: int) -> None:
        """Record how long the steps took; a failure to do so does not discard them."""
        from traces.record import Recorder  # not everywhere: it locks files as Unix does

        try:
            Recorder(self.record, self.client).worked(steps, seconds, up_bytes)
        except (OSError, ValueError) as error:
            logging.getLogger("flwr").warning("not recorded: %s", error)

    def _job(
        self, ins: FitIns | EvaluateIns, config: FitConfig, completion: float, until: float | None = None
    ) -> tuple[Broadcast, list[Job]]:
        """Return the weights, and this client's job as a list."""
        arrays, own = config.split(parameters_to_ndarrays(ins.parameters))
        weights = np.concatenate([array.ravel() for array in arrays])
        check = partial(
            check_memory, rule=config.rule, size=self.clients.model.num_trainable, dtype=self.clients.dtype
        )
        store = self.store.of_run(config.run)
        memory = store.load(check) if config.last_accepted is not None else None
        return Broadcast(weights), [Job(self.client, own, config, completion, memory, until=until)]


def _no_reply(reason: str) -> FitRes:
    return FitRes(_status(reason), Parameters([], "numpy.ndarray"), 0, {})


def _status(reason: str) -> Status:
    return Status(Code.FIT_NOT_IMPLEMENTED, reason)  # Flower has no other status for a failure


def client_fn(context: Context) -> Client:
    """Make the client of a node, given by its `client-id`, or by its `partition-id` in simulation.

    With `state-dir` in the node config, the client's memory outlives the node's process, and the client can
    be told to leave (see `clients.leave`). With `record-trace`, a log or a folder of logs, the client records
    how fast it trains (see `traces.record`).
    """
    settings = Settings.from_mapping(context.run_config, "run-config")
    node = context.node_config
    name = node.get("client-id", node.get("partition-id"))
    if name is None:
        raise ValueError("node-config has no client-id; start the SuperNode with --node-config 'client-id=0'")
    client = int(name)
    if not 0 <= client < settings.num_clients:
        raise ValueError(f"client-id {client} is not in 0..{settings.num_clients - 1} (num-clients)")
    record = str(node.get("record-trace", ""))
    if not node.get("state-dir"):
        return FlexibleClient(settings, client, ContextStore(context), record)
    folder, run = Path(str(node["state-dir"])), context.run_id
    leaving = partial(_is_leaving, folder, run)
    return FlexibleClient(settings, client, FileStore(folder, run, client), record, leaving)


def _is_leaving(folder: Path, run_id: int) -> bool:
    """Whether the client leaves; a folder that cannot be used does not discard its work."""
    try:
        return is_leaving(folder, run_id)
    except OSError as error:
        logging.getLogger("flwr").warning("%s: %s; the client stays", error.filename, error.strerror)
        return False


app = ClientApp(client_fn=client_fn)
