"""An experiment: the parts of a run that do not depend on the engine, made as its plan says."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

import strategies
from clients.gradients.flat import FlatModel, exchanged
from clients.gradients.oracles import choose, may_gain_from_vmap
from clients.gradients.precision import set_precision
from clients.rules import rule_named
from clients.simulated.evaluation import check_gradient, check_memory, check_outputs
from clients.simulated.virtual import ClientEnvironment
from fedtide.base import dotted
from fedtide.base.errors import SettingsError, described, own_places
from fedtide.base.wording import count
from fedtide.config import Settings
from fedtide.engine.availability import RoundClock
from fedtide.engine.central import CentralTrainer
from fedtide.engine.choice import fastest_engine
from fedtide.engine.evaluation import GlobalEvaluator
from fedtide.engine.event_clock import Clock, make_clock
from fedtide.engine.memory_check import check_fits, check_round, check_steps
from fedtide.engine.score import advice, cycle_of
from fedtide.engine.stopping import StoppingRule
from fedtide.engine.transports.base import Transport
from fedtide.engine.transports.late import timed
from fedtide.plan import Plan
from fedtide.tasks import FederatedData, Metric, some_examples
from fedtide.tasks.data import client_names
from strategies import FlatParameters, FlexibleStrategy, Layout, Options, Roster
from strategies.memory.table import TableOptions
from strategies.sequential_sgd import SequentialSGD
from traces import Trace, parse_rounds
from traces.base import NEVER

SLOW = "cohort: loop, one client after the other; --cohort vmap may be faster"


@dataclass(frozen=True)
class Experiment:
    """The parts of a run that do not depend on the engine."""

    plan: Plan
    build_model: Callable[[], nn.Module]
    initial: FlatParameters
    trace: Trace
    clock: Clock
    strategy: FlexibleStrategy
    evaluator: GlobalEvaluator
    device: str = "cpu"  # that virtual clients train on
    why_engine: str = ""  # why the engine was chosen, if it was `auto`
    hint: str = ""  # how scores cover the trace, and clients train faster, or why they do not
    room: str = ""  # what a round takes, or an evaluation, if it is much
    proven: bool = False  # the cohort's gradients, steps in one call included, are those of autograd

    @property
    def settings(self) -> Settings:
        """The settings, with what they leave open decided."""
        return self.plan.settings

    @property
    def data(self) -> FederatedData:
        return self.plan.data

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.plan.metrics

    @property
    def cycle(self) -> float:
        """Over what scores are means, see `cycle_of`."""
        return cycle_of(self.trace, self.settings)

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients, which trace and data agree on; () if they have none."""
        return self.trace.devices or client_names(self.data)

    def timed(self, transport: Transport) -> Transport:
        limit = self.settings.most_clients
        return timed(transport, self.trace, self.clock, limit, self.initial.layout)

    @property
    def environment(self) -> ClientEnvironment:
        return ClientEnvironment(
            self.data,
            self.build_model,
            self.settings.seed,
            self.device,
            self.settings.cohort,
            self.settings.cohort_size,
            self.settings.client_timeout,
            self.proven,
            self.settings.precision,
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from scanning PyTorch's modules again and again while Numba is imported."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collector()
def prepare(plan: Plan, tune: bool = True, observed: Callable[[], Trace] | None = None) -> Experiment:
    """Make the data, the model, the trace, the strategy and the evaluator; ValueError says what is invalid.

    `tune`: choose `cohort`, `cohort_size` and `engine`, which only virtual clients use, where they are open.
    `observed` makes the trace of rounds that end by themselves, as on devices, once all else is checked.
    """
    settings, trace = plan.settings, plan.trace
    for name in ("arrivals", "departures"):
        _check_rounds(name, getattr(settings, name), settings.num_rounds)
    if (trace.has_late_replies or settings.round_ends) and issubclass(plan.strategy, SequentialSGD):
        raise SettingsError(
            f"trace {settings.trace}: strategy {settings.strategy} has no use for late replies"
        )
    cycle_of(trace, settings)  # refuses what a trace of the user's own says
    clock = make_clock(trace, settings.round_ends if observed is None else 0)
    if clock.seconds(1) is None:
        _check_unused(settings)
    data = plan.data
    StoppingRule(settings, plan.metrics)  # refuses a target that the task does not have
    largest = int(data.sizes.max(initial=1))
    check_steps(settings.local_steps, settings.local_epochs, settings.batch_size, largest)
    build_model = plan.model_builder()
    check_fits(plan.model_name, build_model)
    module = _built(plan, build_model)
    device = client_device(settings)
    here = device if torch.cuda.is_available() else "cpu"
    if here == device:
        set_precision(settings.precision, torch.device(device))
    model = FlatModel(module, here, data.criterion, settings.precision)
    check_outputs(model, data)
    check_gradient(model, data)
    check_memory(model, data)
    arrays = model.arrays()
    layout = Layout.of(arrays, model.num_buffers, model.frozen_checksum)
    initial = FlatParameters(layout.flatten(arrays), layout)
    if observed is not None:
        trace = observed()
        clock = RoundClock(trace)  # devices have their own time
    roster = Roster(data.sizes, clock.first.member, trace.participation, clock.forecast)
    evaluator = GlobalEvaluator(settings, data, build_model, roster, plan.functions)
    _check_made_anew(plan.model_name, model.module, evaluator.model.module)
    room = evaluator.check_metrics()
    strategy = strategies.make(plan.strategy, initial, roster, evaluator, options=plan.options)
    _check_personal(settings, strategy)
    if isinstance(strategy, SequentialSGD):
        strategy.trainer = CentralTrainer(
            data, build_model, settings.seed, settings.cohort, settings.precision
        )
    made = (plan, build_model, initial, trace, clock, strategy, evaluator, device)
    experiment = Experiment(*made, hint=advice(trace, settings), room=room)
    if tune:
        experiment = _tuned(experiment, model)
        experiment = replace(experiment, room="; ".join(filter(None, [_check_room(experiment), room])))
    return experiment


def _built(plan: Plan, build_model: Callable[[], nn.Module]) -> nn.Module:
    """Make the model; SettingsError: a class of some library is not made as models are, or on no device."""
    try:
        module = build_model()
    except Exception as error:
        if own_places(error) or not dotted.is_dotted("model", plan.model.name):
            raise
        advice = "name a function (input_shape, num_classes) that makes the model"
        raise SettingsError(f"model {plan.model_name}: {described(error)}; {advice}") from None
    dotted.expect("model", plan.model.name, module, nn.Module, "derive it from torch.nn.Module")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:  # see `check_fits`
            raise SettingsError(
                f"model {plan.model_name}: {name} has no numbers: a model is first made on PyTorch's device "
                "meta, for its size, and nothing of that may be kept, as functools.cache does; make or load "
                "such a part when its file is imported, and copy.deepcopy it"
            )
    return module


def _check_made_anew(name: str, one: nn.Module, other: nn.Module) -> None:
    """Refuse a model with trained weights, or buffers, that the one made before it has as well."""
    before = {id(tensor) for tensor in exchanged(one).values()}
    for key, tensor in exchanged(other).items():
        if id(tensor) in before:
            raise SettingsError(
                f"model {name}: {key} is the same tensor in every model that is made, so that one run would "
                "change another's: make a new layer each time, or copy.deepcopy it"
            )


def _check_room(experiment: Experiment) -> str:
    """Return a line on the room that the first round takes, if it is much; ValueError: there is less."""
    settings, options = experiment.settings, experiment.strategy.options
    there = (experiment.clock.first.completion > 0) & (experiment.data.sizes > 0)
    size, clients = experiment.initial.vector.nbytes, min(settings.most_clients, int(there.sum()))
    here = settings.engine == "ray" and not settings.ray_address
    workers = min(settings.num_workers or os.cpu_count() or 1, clients) if here else 0
    spread = bool(settings.ray_address) and not settings.round_ends  # replies lie on all machines
    if isinstance(experiment.strategy, SequentialSGD) or spread:
        clients = 0
    first = min(clients, settings.round_ends or clients)  # who replies in the first round
    table = _table_file(options, first * size), _table_file(options, settings.num_clients * size)
    return check_round(clients, size, workers, bool(settings.round_ends), table)


def _table_file(options: Options, size: int) -> int:
    """Return how many of so many bytes of clients' vectors at the server lie in a file."""
    if getattr(options, "memory", "server") == "client":
        return 0
    if not isinstance(options, TableOptions) or options.table_folder:
        return 0
    return size if size > options.table_memory * 2**30 else 0


def _check_unused(settings: Settings) -> None:
    """Refuse settings in virtual seconds where there are none."""
    for name in ("until", "evaluate_seconds"):
        if getattr(settings, name):
            flag, clocks = name.replace("_", "-"), "take one that has, such as phones"
            raise SettingsError(
                f"{flag} is in virtual seconds, trace {settings.trace} has no clock: {clocks}"
            )


def _check_personal(settings: Settings, strategy: FlexibleStrategy) -> None:
    """Refuse to stop at the metric or loss of personal models where there are none."""
    asks_nobody = type(strategy).configure_evaluate is FlexibleStrategy.configure_evaluate
    if settings.stop_at.startswith("client") and asks_nobody:
        raise SettingsError(
            f"stop-at {settings.stop_at}: strategy {settings.strategy} evaluates nothing at the clients"
        )


def _check_rounds(name: str, text: str, num_rounds: int) -> None:
    """Refuse arrivals or departures that come after the last round."""
    for client, when in parse_rounds(text).items():
        if isinstance(when, int) and num_rounds < when < NEVER:
            only = count(num_rounds, "round")
            raise SettingsError(f"{name}: client {client} has round {when}, but the run has only {only}")


def client_device(settings: Settings) -> str:
    """Return the device that virtual clients train on, which a cluster may have and this machine may not."""
    if settings.client_gpus and settings.ray_address and settings.engine != "inline":
        from fedtide.engine.transports.ray.cluster import has_gpus

        return "cuda" if has_gpus(settings.ray_address) else "cpu"
    return "cuda" if settings.client_gpus and torch.cuda.is_available() else "cpu"


def _tuned(experiment: Experiment, model: FlatModel) -> Experiment:
    """Choose how cohorts are trained, and the engine, where the settings leave it open."""
    settings, rule = experiment.settings, rule_named(experiment.strategy.rule.name)
    examples, wanted = some_examples(experiment.data), (settings.cohort, settings.cohort_size)
    here = settings.engine != "ray"  # whose workers prove their gradients themselves, all at once
    cohort, size, why = choose(model, examples, *wanted, rule, experiment.device, here)
    several = settings.most_clients > 1
    several &= not isinstance(experiment.strategy, SequentialSGD)
    if not why and several and (settings.cohort, cohort) == ("auto", "loop"):
        why = SLOW if may_gain_from_vmap(model, examples) else ""
    experiment = replace(experiment, hint="; ".join(filter(None, [experiment.hint, why])))
    plan = experiment.plan.replace(cohort=cohort, cohort_size=size)
    experiment = replace(experiment, plan=plan, proven=here)
    if settings.engine != "auto":
        return experiment
    engine, why = fastest_engine(experiment, rule)
    return replace(experiment, plan=plan.replace(engine=engine), why_engine=why)
