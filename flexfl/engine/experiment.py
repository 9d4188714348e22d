"""An experiment: the parts of a run that do not depend on the engine, made from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

import strategies
from clients.environment import federated_data, make_trace, model_builder
from clients.gradients.flat import FlatModel
from clients.rules import SGD, rule_named
from clients.tuning import COHORTS, Work, choose
from flexfl.config import Settings, bind, build, options_of, parse
from flexfl.config.specs import convert, find
from flexfl.contract.fit import planned_steps
from flexfl.engine.central import CentralTrainer
from flexfl.engine.evaluation import GlobalEvaluator
from flexfl.engine.loggers.registry import logger_types
from flexfl.tasks import FederatedData
from strategies import FlatParameters, FlexibleStrategy, Layout, Options, Roster
from strategies.core.layers import LayerFactory
from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from traces import Trace, parse_rounds

# Settings that are options of every strategy, under the same names.
GENERAL = (
    "clients_per_round",
    "local_steps",
    "local_epochs",
    "batch_size",
    "learning_rate",
    "num_rounds",
    "seed",
)


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
        The settings of the run.
    tune
        Whether to choose `cohort` and `cohort_size` where the settings leave them open; only virtual
        clients use them.

    Raises
    ------
    ValueError
        The settings are invalid or do not fit together; the message says why.
    """
    options = strategy_options(settings)  # errors in names and options are reported before data are loaded
    logger_types(settings)
    find("cohort", COHORTS, settings.cohort)
    trace = make_trace(settings)
    _check_rounds(settings)
    strategy_type = strategies.STRATEGIES[parse("strategy", settings.strategy).name]
    if trace.has_late_replies and strategy_type.late_replies == "refuse":
        raise ValueError(f"trace {settings.trace}: strategy {settings.strategy} has no use for late replies")
    data = federated_data(settings)
    build_model = model_builder(settings, data)
    model = FlatModel(build_model(), client_device(settings))
    arrays = model.arrays()
    layout = Layout.of(arrays)
    initial = FlatParameters(layout.flatten(arrays), layout)
    roster = Roster(data.sizes, trace.round(1).member, trace.participation)
    evaluator = GlobalEvaluator(
        data,
        build_model,
        roster,
        settings.evaluate_on,
        settings.train_loss,
        settings.evaluate_clients,
        settings.num_rounds,
    )
    name = parse("strategy", settings.strategy).name
    trainer = CentralTrainer(data, build_model, settings.seed)
    strategy = strategies.make(name, initial, roster, evaluator, options=options, trainer=trainer)
    if tune:
        settings = _tuned(settings, model, data, rule_named(strategy.rule.name))
    return Experiment(settings, data, build_model, initial, trace, strategy, evaluator)


def strategy_options(settings: Settings) -> Options:
    """Return the strategy's options: the general ones, those of its spec, and those given with `option`."""
    spec = parse("strategy", settings.strategy)
    strategy = find("strategy", strategies.STRATEGIES, spec.name)
    options_type = strategy.options_type()
    given = {**spec.options, **settings.strategy_options}
    flags = {name.replace("_", "-") for name in GENERAL}
    if flagged := sorted(given.keys() & flags):
        raise ValueError(f"strategy {spec.name}: set {flagged[0]} by --{flagged[0]}, not as an option")
    known = {key: option for key, option in options_of(options_type).items() if key not in flags}
    own = convert(f"strategy {spec.name}", known, given)
    general = {name: getattr(settings, name) for name in GENERAL}
    schedule = build("lr-schedule", strategies.SCHEDULES, settings.lr_schedule)
    layers = layers_of(settings)
    if layers and not strategy.takes_layers:
        raise ValueError(f"strategy {spec.name} takes neither --server-opt nor --amplify")
    options: Options = options_type(**general, lr_schedule=schedule, layers=layers, **own)
    return options


def layers_of(settings: Settings) -> tuple[LayerFactory, ...]:
    """Return the layers on top of the strategy, the lowest one first."""
    layers: list[LayerFactory] = []
    if settings.server_opt:
        optimizer, options = bind("server-opt", SERVER_OPTIMIZERS, settings.server_opt)
        layers.append(partial(optimizer, **options))
    if settings.amplify:
        period, _, factor = settings.amplify.partition(",")
        try:
            layers.append(partial(Amplification, period=int(period), factor=float(factor)))
        except ValueError:
            raise ValueError(f"amplify {settings.amplify!r} is not PERIOD,FACTOR such as 10,2.0") from None
        if int(period) > settings.num_rounds:
            raise ValueError(f"amplify: the period is {period} of only {settings.num_rounds} rounds")
    for layer in layers:
        layer(np.zeros(0))  # checks the values
    return tuple(layers)


def _check_rounds(settings: Settings) -> None:
    """Refuse arrivals and departures that come after the last round."""
    for name in ("arrivals", "departures"):
        for client, server_round in parse_rounds(getattr(settings, name)).items():
            if server_round > settings.num_rounds:
                raise ValueError(
                    f"{name}: client {client} has round {server_round}, but there are only "
                    f"{settings.num_rounds} rounds"
                )


def client_device(settings: Settings) -> str:
    """Return the device that virtual clients train on."""
    return "cuda" if settings.client_gpus and torch.cuda.is_available() else "cpu"


def _tuned(settings: Settings, model: FlatModel, data: FederatedData, rule: type[SGD]) -> Settings:
    """Choose how cohorts are trained, where the settings leave it open."""
    examples = max(1, int(np.median(data.sizes)))
    batch_size = min(settings.batch_size or examples, examples)
    steps = planned_steps(settings.local_steps, settings.local_epochs, batch_size, examples)
    work = Work(steps, batch_size, examples, rule.plain())
    most = settings.clients_per_round or settings.num_clients
    wanted = (settings.cohort, settings.cohort_size)
    cohort, size = choose(model, data.input_shape, work, most, *wanted)
    return replace(settings, cohort=cohort, cohort_size=size)
