"""A run from its settings: makes the parts, runs the rounds, leaves the run folder."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.common import parameters_to_ndarrays
from rich.console import Console
from threadpoolctl import threadpool_limits
from torch import nn

import strategies
from clients.environment import ClientEnvironment, federated_data, make_trace, model_builder
from clients.gradients.flat import FlatModel
from clients.rules import SGD, rule_named
from clients.tuning import COHORTS, Work, choose
from flexfl.config import Settings, build, options_of, parse
from flexfl.config.specs import convert, find
from flexfl.contract.fit import planned_steps
from flexfl.engine.availability import TraceClientManager
from flexfl.engine.central import CentralTrainer
from flexfl.engine.evaluation import GlobalEvaluator
from flexfl.engine.interrupts import putting_interrupt_off, stopping_on_interrupt
from flexfl.engine.progress import ProgressReport, final_table
from flexfl.engine.run_folder import RunFolder, finite, weights_sha256
from flexfl.engine.server import RoundServer
from flexfl.engine.transports.base import Transport
from flexfl.engine.transports.virtual import InlineTransport
from flexfl.tasks import FederatedData
from strategies import FlatParameters, FlexibleStrategy, Layout, Options, Roster
from traces import RoundAvailability, Trace

GENERAL = (
    "clients_per_round",
    "local_steps",
    "local_epochs",
    "batch_size",
    "learning_rate",
    "num_rounds",
    "seed",
)  # settings that are options of every strategy, under the same names


@dataclass(frozen=True)
class Experiment:
    """The parts of a run that do not depend on the engine."""

    settings: Settings
    data: FederatedData
    build_model: Callable[[], nn.Module]
    initial: FlatParameters
    trace: Trace
    strategy: FlexibleStrategy
    evaluator: GlobalEvaluator


def prepare(settings: Settings, tune: bool = True) -> Experiment:
    """Make the data, the model, the trace, the strategy and the evaluator.

    Parameters
    ----------
    settings
        What the user wants.
    tune
        Whether to choose what of `cohort` and `cohort_size` is left open, for virtual clients.

    Raises
    ------
    ValueError
        The settings cannot be met; the message says why.
    """
    options = strategy_options(settings)  # what can be wrong is found before data are loaded
    find("cohort", COHORTS, settings.cohort)
    trace = make_trace(settings)
    data = federated_data(settings)
    build_model = model_builder(settings, data)
    model = FlatModel(build_model(), client_device(settings))
    arrays = model.arrays()
    layout = Layout.of(arrays)
    initial = FlatParameters(layout.flatten(arrays), layout)
    roster = Roster(data.sizes, trace.round(1).member)
    evaluator = GlobalEvaluator(data, build_model, roster, settings.evaluate_on, settings.train_loss)
    name = parse("strategy", settings.strategy).name
    trainer = CentralTrainer(data, build_model, settings.seed)
    strategy = strategies.make(name, initial, roster, evaluator, options=options, trainer=trainer)
    if tune:
        settings = _tuned(settings, model, data, rule_named(strategy.rule.name))
    return Experiment(settings, data, build_model, initial, trace, strategy, evaluator)


def strategy_options(settings: Settings) -> Options:
    """Return the strategy's options: the general ones, those of its spec, and those given with `option`."""
    spec = parse("strategy", settings.strategy)
    options_type = find("strategy", strategies.STRATEGIES, spec.name).options_type()
    given = {**spec.options, **settings.strategy_options}
    flags = {name.replace("_", "-") for name in GENERAL}
    if flagged := sorted(given.keys() & flags):
        raise ValueError(f"strategy {spec.name}: set {flagged[0]} by --{flagged[0]}, not as an option")
    known = {key: option for key, option in options_of(options_type).items() if key not in flags}
    own = convert(f"strategy {spec.name}", known, given)
    general = {name: getattr(settings, name) for name in GENERAL}
    schedule = build("lr-schedule", strategies.SCHEDULES, settings.lr_schedule)
    options: Options = options_type(**general, lr_schedule=schedule, **own)
    return options


def client_device(settings: Settings) -> str:
    """Where virtual clients train."""
    return "cuda" if settings.client_gpus and torch.cuda.is_available() else "cpu"


def _tuned(settings: Settings, model: FlatModel, data: FederatedData, rule: type[SGD]) -> Settings:
    """Choose how cohorts are trained, as far as the user has left it open."""
    examples = max(1, int(np.median(data.sizes)))
    batch_size = min(settings.batch_size or examples, examples)
    steps = planned_steps(settings.local_steps, settings.local_epochs, batch_size, examples)
    work = Work(steps, batch_size, examples, rule.plain())
    most = settings.clients_per_round or settings.num_clients
    wanted = (settings.cohort, settings.cohort_size)
    cohort, size = choose(model, data.input_shape, work, most, *wanted)
    return replace(settings, cohort=cohort, cohort_size=size)


def virtual_transport(experiment: Experiment, availability: Callable[[int], RoundAvailability]) -> Transport:
    """Make the transport that the settings ask for."""
    settings = experiment.settings
    defaults = {
        "local-steps": settings.local_steps,
        "batch-size": settings.batch_size,
        "learning-rate": settings.learning_rate,
    }
    environment = ClientEnvironment(
        experiment.data,
        experiment.build_model,
        settings.seed,
        client_device(settings),
        settings.cohort,
        settings.cohort_size,
    )
    initial, lost = experiment.initial, experiment.trace.lost
    if settings.engine == "inline":
        return InlineTransport(environment, initial, availability, defaults, lost)
    with putting_interrupt_off() as interrupted:
        from flexfl.engine.transports.ray import RayTransport  # Ray is not there on every machine

        transport = RayTransport(
            environment,
            initial,
            availability,
            defaults,
            lost,
            num_workers=settings.num_workers,
            client_gpus=settings.client_gpus,
            address=settings.ray_address,
        )
    if interrupted:
        transport.close()
        raise KeyboardInterrupt
    return transport


def drive(
    experiment: Experiment,
    transport: Transport,
    availability: Callable[[int], RoundAvailability],
    folder: RunFolder,
    console: Console,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run the rounds of an experiment over a transport, and close it.

    Returns
    -------
    dict
        The summary that `summary.json` keeps.
    """
    settings, strategy = experiment.settings, experiment.strategy
    try:
        manager = TraceClientManager(availability, transport, settings.seed)
        with ProgressReport(settings.num_rounds, console) as progress:
            last: dict[str, Any] = {}
            observers = (folder.write_round, progress.show, last.update)
            clock = experiment.trace.seconds
            server = RoundServer(strategy, manager, transport, settings.evaluate_every, observers, clock)
            start = time.perf_counter()
            with _undisturbed(), stopping_on_interrupt(server, console), suppress(KeyboardInterrupt):
                server.fit(settings.num_rounds, timeout)
            seconds = time.perf_counter() - start
    finally:
        transport.close()
    arrays = parameters_to_ndarrays(server.parameters)
    folder.write_weights(arrays)
    summary: dict[str, Any] = finite(
        {
            "strategy": settings.strategy,
            "task": settings.task,
            "rounds": last["round"],
            "client_fits": progress.client_fits,
            "seconds": round(seconds, 3),
            "final": {
                "accuracy": last.get("accuracy"),
                "loss": last.get("loss"),
                "train_loss": experiment.evaluator.train_loss(arrays),
                **{key: last[key] for key in ("client_accuracy", "client_loss") if key in last},
            },
            "run_dir": str(folder.path),
            "weights_sha256": weights_sha256(arrays),
        }
    )
    folder.write_summary(summary)
    console.print(final_table(summary, progress.failures, last.get("virtual_seconds")))
    return summary


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep what costs milliseconds a round out of the rounds.

    Threads of BLAS wait for their next task in a loop, and take the cores away from the clients; and the
    garbage collector would search all that was imported again and again.
    """
    gc.collect()
    gc.freeze()
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        gc.unfreeze()
