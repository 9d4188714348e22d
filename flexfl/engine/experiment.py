"""An experiment: the parts of a run that do not depend on the engine, made from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

import strategies
from clients.environment import check_specs, federated_data, make_trace, model_builder, task_source
from clients.evaluation import check_outputs
from clients.gradients.flat import FlatModel
from clients.rules import SGD, rule_named
from clients.tuning import COHORTS, Work, choose
from flexfl.config import Settings
from flexfl.contract.fit import planned_steps
from flexfl.engine.central import CentralTrainer
from flexfl.engine.evaluation import GlobalEvaluator
from flexfl.engine.loggers.registry import logger_types
from flexfl.engine.memory import check_fits
from flexfl.engine.wording import count
from flexfl.specs import build, convert, find, options_of, parse
from flexfl.tasks import FederatedData, blank
from strategies import FlatParameters, FlexibleStrategy, Layout, Options, Roster
from strategies.parts.layering import layers_of
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
    check_names(settings)
    options = strategy_options(settings)
    logger_types(settings)
    if tune and settings.engine == "ray":
        require_ray("take --engine inline")
    trace = make_trace(settings)
    _check_rounds(settings)
    strategy_type = strategies.STRATEGIES[parse("strategy", settings.strategy).name]
    if trace.has_late_replies and strategy_type.late_replies == "refuse":
        raise ValueError(f"trace {settings.trace}: strategy {settings.strategy} has no use for late replies")
    data = federated_data(settings)
    build_model = model_builder(settings, data)
    check_fits(settings.model or task_source(settings).default_model, build_model)
    model = FlatModel(build_model(), client_device(settings), data.criterion)
    check_outputs(model, data)
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


def check_names(settings: Settings) -> None:
    """Refuse unknown names and options in the settings, before any data are loaded.

    Raises
    ------
    ValueError
        The first of them, with those that are known.
    """
    strategy_options(settings)
    check_specs(settings)
    find("cohort", COHORTS, settings.cohort)


def require_ray(otherwise: str) -> None:
    """Raise ValueError, which says what to do otherwise, where Ray is not installed."""
    if find_spec("ray") is None:
        raise ValueError(f"Ray is not installed: pip install ray, or {otherwise}")


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
    layers = layers_of(settings.server_opt, settings.amplify)
    if settings.amplify and (period := int(settings.amplify.partition(",")[0])) > settings.num_rounds:
        raise ValueError(f"amplify: the period is {period} of only {count(settings.num_rounds, 'round')}")
    if layers and not strategy.takes_layers:
        raise ValueError(f"strategy {spec.name} takes neither --server-opt nor --amplify")
    options: Options = options_type(**general, lr_schedule=schedule, layers=layers, **own)
    return options


def _check_rounds(settings: Settings) -> None:
    """Refuse arrivals and departures that come after the last round."""
    for name in ("arrivals", "departures"):
        for client, server_round in parse_rounds(getattr(settings, name)).items():
            if server_round > settings.num_rounds:
                raise ValueError(
                    f"{name}: client {client} has round {server_round}, but the run has only "
                    f"{count(settings.num_rounds, 'round')}"
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
    cohort, size = choose(model, blank(data, 2), work, most, *wanted)
    return replace(settings, cohort=cohort, cohort_size=size)
