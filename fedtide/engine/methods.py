"""The method that the settings name: one of ours, one of the user's own, or another strategy of Flower."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, NamedTuple

from flwr.server.strategy import Strategy

import strategies
from clients.rules import rule_named
from fedtide.config import Settings
from fedtide.engine.sequential_sgd import SequentialSGD
from fedtide.ground.allowed import Option, options_of
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import build, convert, find, parse
from fedtide.ground.wording import count
from fedtide.interop.stock_strategy import StockStrategy, stock_type
from strategies import FlexibleStrategy, Options
from strategies.parts.initial_model import initial_model_of
from strategies.parts.layering import layers_of
from strategies.selection import selection_of

METHODS: dict[str, type[FlexibleStrategy]] = {**strategies.STRATEGIES, "sequential-sgd": SequentialSGD}
"""What `--strategy` accepts, but for dotted names."""

# What methods of one's own may still define, and what has taken its place.
FORMER_HOOKS = {
    "on_arrival": "members_changed(arrived, left)",
    "on_departure": "members_changed(arrived, left)",
    "on_farewell": "farewells(states)",
}

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


class Method(NamedTuple):
    """A federated method, and its options."""

    strategy: type[FlexibleStrategy]
    options: Options


def strategy_type(name: str) -> type[FlexibleStrategy]:
    """Return the method of this name: a registered one, or what a dotted name stands for.

    ValueError: there is none, or it is not a strategy of Flower, or it is a custom one and not complete.
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
    flags = {name.replace("_", "-") for name in GENERAL}
    if issubclass(strategy, StockStrategy):
        flags |= options_of(Options).keys()
    return {key: option for key, option in options_of(strategy.options_type()).items() if key not in flags}


def method_of(settings: Settings) -> Method:
    """Return the method that the settings name.

    Its options are the general ones, those of its spec, and those given with `option`. ValueError: there
    is no such method, or it has no such option.
    """
    spec = parse("strategy", settings.strategy)
    strategy = strategy_type(spec.name)
    given = {**spec.options, **settings.strategy_options}
    if twice := sorted(spec.options.keys() & settings.strategy_options.keys()):
        raise SettingsError(
            f"strategy {settings.strategy} has {twice[0]}, which option or tune sets again; give it once"
        )
    flags = {name.replace("_", "-") for name in GENERAL}
    if flagged := sorted(given.keys() & flags):
        raise SettingsError(f"strategy {spec.name}: set {flagged[0]} by --{flagged[0]}, not as an option")
    own = convert(f"strategy {spec.name}", own_options(strategy), given)
    general: dict[str, Any] = {name: getattr(settings, name) for name in GENERAL}
    schedule = build("lr-schedule", strategies.SCHEDULES, settings.lr_schedule)
    if not callable(schedule):
        advice = "not a callable (learning_rate, server_round, shift, local_steps) -> rate"
        raise SettingsError(f"lr-schedule {settings.lr_schedule} gives a {type(schedule).__name__}, {advice}")
    layers = layers_of(settings.server_opt, settings.amplify)
    if settings.amplify and (period := int(settings.amplify.partition(",")[0])) > settings.num_rounds:
        raise SettingsError(f"amplify: the period is {period} of only {count(settings.num_rounds, 'round')}")
    initial_model = initial_model_of(settings.initial_model)
    if (layers or settings.initial_model) and not strategy.takes_layers:
        raise SettingsError(f"strategy {spec.name} takes no --server-opt, --amplify or --initial-model")
    general |= {"lr_schedule": schedule, "select": selection_of(settings.select)}
    general |= {"layers": layers, "initial_model": initial_model}
    return Method(strategy, strategy.options_type()(**general, **own))


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
