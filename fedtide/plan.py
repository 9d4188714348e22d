"""The plan of a run: every spec of its settings bound once, for whoever carries the run out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from flwr.server.strategy import Strategy

import strategies
from clients.gradients.oracles import COHORTS
from clients.rules import rule_named
from fedtide.base import dotted
from fedtide.base.allowed import Option, options_of
from fedtide.base.errors import SettingsError
from fedtide.base.sources import code_hash, content_hash
from fedtide.base.specs import Part, bind, convert, find, parse, trace_specs
from fedtide.base.wording import count
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.interop.stock_strategy import StockStrategy, stock_type
from fedtide.tasks import MODELS, PARTITIONS, SIZES, TASKS, Metric
from fedtide.tasks.metrics import SCIKIT_LEARN, MetricFunction, metric_functions
from strategies import FlexibleStrategy, Options
from strategies.registry import SERVER_PARTS, server_options
from strategies.sequential_sgd import SequentialSGD
from traces import TRACES

METHODS: dict[str, type[FlexibleStrategy]] = {**strategies.STRATEGIES, "sequential-sgd": SequentialSGD}
"""What `--strategy` accepts, but for dotted names."""

REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "strategy": METHODS,
    "task": TASKS,
    "model": MODELS,
    "partition": PARTITIONS,
    "sizes": SIZES,
    "trace": TRACES,
    **SERVER_PARTS,
    "cohort": COHORTS,
    "metrics": SCIKIT_LEARN,
}
"""What the settings that name a part accept, but for dotted names."""

GIVEN = {"data_dir", "local_steps"}  # options of parts that have the value of the setting unless set

# Settings that are options of every strategy, under the same names.
GENERAL = (
    "clients_per_round",
    "round_ends",
    "local_steps",
    "local_epochs",
    "batch_size",
    "learning_rate",
    "num_rounds",
    "max_update_norm",
    "seed",
)
FLAGGED = {name.replace("_", "-") for name in GENERAL}

# What methods of one's own may still define, and what has taken its place.
FORMER_HOOKS = {
    "on_arrival": "members_changed(arrived, left)",
    "on_departure": "members_changed(arrived, left)",
    "on_farewell": "farewells(states)",
}


@dataclass(eq=False)
class Plan(Federation):
    """The parts of a run, each bound once: those of its federation, and those that only the server has."""

    method: Part  # the strategy's class and the options that its spec and `option` set
    server_parts: Mapping[str, Part]  # those of `SERVER_PARTS` that are set, by kind
    functions: tuple[MetricFunction, ...]  # the metrics of the user's choice
    options: Options  # all of the strategy, with schedule, selection and layers

    @classmethod
    def of(cls, settings: Settings, **_: Any) -> Self:
        """Bind all parts, which takes no time and no PyTorch.

        SettingsError: one does not exist or does not allow its options, or they do not fit together.
        """
        method = _method(settings)
        values = settings.as_mapping()
        named = {kind: names for kind, names in SERVER_PARTS.items() if values[kind]}
        parts = {kind: bind(kind, names, values[kind]) for kind, names in named.items()}
        plan = super().of(settings, method=method, server_parts=parts, functions=(), options=Options())
        own = [spec for spec in getattr(plan.source, "metrics", ()) if spec not in settings.metrics]
        plan.functions = metric_functions([*own, *settings.metrics])
        plan.options = _options(plan.settings, method, parts)  # with the rate that suits the model
        return plan

    @property
    def strategy(self) -> type[FlexibleStrategy]:
        """The class of the method."""
        found: type[FlexibleStrategy] = self.method.factory  # type: ignore[assignment]
        return found

    @property
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """The bound parts by kind; a trace may be a combination of several."""
        of_server = {kind: (part,) for kind, part in self.server_parts.items()}
        metrics = {"metrics": tuple(found.part for found in self.functions)} if self.functions else {}
        return {"strategy": (self.method,), **super().parts, **of_server, **metrics}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What every evaluation measures beside the loss: the task's own metric first."""
        own = self.data.criterion.metric
        for found in self.functions:
            if found.metric.key == own.key:
                raise SettingsError(
                    f"metrics {found.spec}: the task reports its {own.title} anyway; leave it out"
                )
        return own, *(found.metric for found in self.functions)

    @property
    def resolved(self) -> dict[str, str]:
        """The specs of all parts with every option, those included that the task decides."""
        specs = {
            kind: (" " if kind == "metrics" else "+").join(map(self._resolved, parts))
            for kind, parts in self.parts.items()
        }
        return specs | {"cohort": self.settings.cohort}

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """A hash of each thing of the user's own that the run depends on.

        These are the files and folders that options name, by their path, and the code of parts with a dotted
        name, by that name: all files of the user's own that define and import it. SettingsError: such code
        has changed since it was imported.
        """
        hashes, paths = {}, []
        for kind, parts in self.parts.items():
            for part in parts:
                options = part.options
                if dotted.is_dotted(kind, part.name):
                    if part.name not in dotted.PROVIDED:  # whose names have a hash
                        found = dotted.load(kind, part.name)
                        hashes[part.name] = code_hash(f"{kind} {part.name}", found)
                    options = options if part is self.method else {**part.defaults, **options}
                paths += [value for key, value in options.items() if key not in GIVEN]
        if dotted.is_dotted("rule", rule := self.strategy.rule.name):
            hashes[rule] = code_hash(f"rule {rule}", rule_named(rule))
        for path in paths:
            if isinstance(path, str) and path and os.path.exists(path):
                hashes[path] = content_hash(Path(path))
        return dict(sorted(hashes.items()))

    def _resolved(self, part: Part) -> str:
        """Return a part's spec with every option."""
        chosen = part.defaults
        chosen |= {key: getattr(self.settings, key) for key in GIVEN & chosen.keys()}
        chosen.update(part.options)
        if part is self.method:
            chosen = vars(self.options)
        options = (f"{name}={_written(chosen[option.parameter])}" for name, option in part.known.items())
        return ":".join(filter(None, [part.name, ",".join(options)]))


def named_parts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and spec of every part that settings name; a setting, by kebab-case key, may be a list."""
    for kind in REGISTRIES:
        given = values.get(kind, "")
        for text in given if isinstance(given, list) else [given]:
            for spec in trace_specs(text) if kind == "trace" else [text]:
                if spec:
                    yield kind, spec


def strategy_type(name: str) -> type[FlexibleStrategy]:
    """Return the method of this name: a registered one, or what a dotted name stands for.

    SettingsError: there is none, or it is not a strategy of Flower, or it is a custom one and not complete.
    """
    found = find("strategy", METHODS, name)
    if name in METHODS:
        return found  # type: ignore[no-any-return]
    if isinstance(found, type) and issubclass(found, FlexibleStrategy):
        _check_own(name, found)
        return found
    if isinstance(found, type) and not issubclass(found, Strategy):
        of_messages = any(base.__module__.startswith("flwr.serverapp.") for base in found.__mro__)
        advice = "name one of flwr.server.strategy instead" if of_messages else "derive it from one"
        other = " but one for Flower's Message API" if of_messages else ""
        raise SettingsError(f"strategy {name} is not a flwr.server.strategy.Strategy{other}: {advice}")
    return stock_type(name, found)


def own_options(strategy: type[FlexibleStrategy]) -> dict[str, Option]:
    """Return the options of a method that have no flag of their own, by the names that users write."""
    flags = FLAGGED | (options_of(Options).keys() if issubclass(strategy, StockStrategy) else set())
    return {key: option for key, option in options_of(strategy.options_type()).items() if key not in flags}


def _method(settings: Settings) -> Part:
    """Bind the strategy, with the options of its spec and those given with `option`."""
    spec = parse("strategy", settings.strategy)
    strategy = strategy_type(spec.name)
    given = {**spec.options, **settings.strategy_options}
    if twice := sorted(spec.options.keys() & settings.strategy_options.keys()):
        raise SettingsError(
            f"strategy {settings.strategy} has {twice[0]}, which option or tune sets again; give it once"
        )
    if flagged := sorted(given.keys() & FLAGGED):
        raise SettingsError(f"strategy {spec.name}: set {flagged[0]} by --{flagged[0]}, not as an option")
    known = own_options(strategy)
    return Part(spec.name, strategy, convert(f"strategy {spec.name}", known, given), known)


def _options(settings: Settings, method: Part, parts: Mapping[str, Part]) -> Options:
    """Return all options of the strategy."""
    strategy: Any = method.factory
    general: dict[str, Any] = {name: getattr(settings, name) for name in GENERAL}
    general |= server_options(parts, settings.amplify)
    if not callable(schedule := general["lr_schedule"]):
        advice = "not a callable (learning_rate, server_round, shift, local_steps) -> rate"
        raise SettingsError(f"lr-schedule {settings.lr_schedule} gives a {type(schedule).__name__}, {advice}")
    if settings.amplify and (period := int(settings.amplify.partition(",")[0])) > settings.num_rounds:
        raise SettingsError(f"amplify: the period is {period} of only {count(settings.num_rounds, 'round')}")
    if general["layers"] and not strategy.takes_layers:
        raise SettingsError(f"strategy {method.name} takes no --server-opt or --amplify")
    if "initial-model" in parts and not strategy.takes_initial_model:
        raise SettingsError(f"strategy {method.name} takes no --initial-model")
    options: Options = strategy.options_type()(**general, **method.options)
    return options


def _check_own(name: str, strategy: type[FlexibleStrategy]) -> None:
    try:
        options = strategy.options_type()
    except NameError as error:
        raise SettingsError(f"strategy {name}: the annotation of `options` cannot be read: {error}") from None
    if not (isinstance(options, type) and issubclass(options, Options) and is_dataclass(options)):
        raise SettingsError(f"strategy {name}: `options` is not annotated with a class derived from Options")
    if "__dataclass_fields__" not in vars(options):
        advice = "decorate it with @dataclass(frozen=True, kw_only=True)"
        raise SettingsError(f"strategy {name}: {options.__name__} is not a dataclass: {advice}")
    if former := [hook for hook in FORMER_HOOKS if hasattr(strategy, hook)]:
        raise SettingsError(
            f"strategy {name}: {former[0]} is called no more; define {FORMER_HOOKS[former[0]]} in its place"
        )
    rule_named(strategy.rule.name)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
