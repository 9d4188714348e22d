"""The methods by name, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from flwr.common import Parameters, parameters_to_ndarrays

from fedtide.base import dotted
from fedtide.base.allowed import Option, did_you_mean
from fedtide.base.errors import SettingsError
from fedtide.base.specs import Part, bind, find
from strategies import FlatParameters, FlexibleStrategy, Layer, Layout, Options, Roster, Selection
from strategies.amplified_scaffold import AmplifiedScaffold
from strategies.apfl import APFL
from strategies.cafed import CAFed
from strategies.core.app import FlowerArguments
from strategies.core.layers import LayerFactory
from strategies.core.options import SCHEDULES
from strategies.core.selection import of_method
from strategies.core.strategy import EvaluateFn
from strategies.efl import EFL
from strategies.f3ast import F3AST
from strategies.fedacg import FedACG
from strategies.fedasync import FedAsync
from strategies.fedau import FedAU
from strategies.fedavg import FedAvg, FedSGD
from strategies.fedawe import FedAWE
from strategies.fedbuff import FedBuff
from strategies.feddyn import FedDyn
from strategies.fedexp import FedExP
from strategies.fedgate import FedGATE
from strategies.fedlaavg import FedLaAvg
from strategies.fedlaavg_client_memory import FedLaAvgClientMemory
from strategies.fednova import FedNova, FedNovaProximal
from strategies.fedprox import FedProx
from strategies.fedvarp import FedStale, FedVARP
from strategies.focus import Focus
from strategies.focus_client_memory import FocusClientMemory
from strategies.ghbm import GHBM
from strategies.mifa import MIFA
from strategies.mimic import MimiC
from strategies.mimic_client_memory import MimiCClientMemory
from strategies.parts.amplification import Amplification
from strategies.parts.initial_model import INITIAL_MODELS
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from strategies.pfedme import PFedMe
from strategies.scaffold import Scaffold
from strategies.schemes import SchemeA, SchemeB, SchemeC
from strategies.selection import SELECTIONS
from strategies.vrl_sgd import VRLSGD

STRATEGIES: dict[str, type[FlexibleStrategy]] = {
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "scheme-a": SchemeA,
    "scheme-b": SchemeB,
    "scheme-c": SchemeC,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedexp": FedExP,
    "fedacg": FedACG,
    "fedau": FedAU,
    "fedawe": FedAWE,
    "f3ast": F3AST,
    "cafed": CAFed,
    "fedbuff": FedBuff,
    "fedasync": FedAsync,
    "mifa": MIFA,
    "fedlaavg": FedLaAvg,
    "mimic": MimiC,
    "fedvarp": FedVARP,
    "fedstale": FedStale,
    "scaffold": Scaffold,
    "amplified-scaffold": AmplifiedScaffold,
    "focus": Focus,
    "fedgate": FedGATE,
    "vrl-sgd": VRLSGD,
    "ghbm": GHBM,
    "feddyn": FedDyn,
    "apfl": APFL,
    "pfedme": PFedMe,
    "efl": EFL,
}

VARIANTS: dict[str, tuple[str, type[FlexibleStrategy]]] = {
    "fedlaavg": ("memory", FedLaAvgClientMemory),
    "mimic": ("memory", MimiCClientMemory),
    "focus": ("memory", FocusClientMemory),
    "fednova": ("mu", FedNovaProximal),
}
"""Methods of which an option, where it has not its default value, makes another class."""


SERVER_PARTS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "lr-schedule": SCHEDULES,
    "server-opt": SERVER_OPTIMIZERS,
    "initial-model": INITIAL_MODELS,
    "select": SELECTIONS,
}
"""What only the server has besides its method, by kind and name."""
NEVER_EMPTY = ("lr_schedule", "select")
SPECS = ("initial_model", *NEVER_EMPTY)  # options for which `make` takes a spec
LAYERS = ("server_opt", "amplify")  # what it takes for `layers`, too


def make(
    name: str | type[FlexibleStrategy],
    initial_parameters: Parameters,
    roster: Roster | None = None,
    evaluate_fn: EvaluateFn | None = None,
    *,
    options: Options | None = None,
    num_buffers: int = 0,
    **values: Any,
) -> FlexibleStrategy:
    """Make a strategy by its name, or by its class.

    Parameters
    ----------
    name
        One of `STRATEGIES`, or the class of any method, also one of your own.
    initial_parameters, roster, evaluate_fn
        See `FlexibleStrategy`.
    num_buffers
        How many of the initial arrays, the last ones, are buffers such as BatchNorm's running means and
        variances: they are averaged, and no formula of the method is applied to them.
    options
        The strategy's options, an object of its `options_type()`.
    values
        Fields of the strategy's options, in place of `options`. As on the command line, `lr_schedule` may be
        a spec such as `staircase:restart=false`, `select` one such as `oort`, and `initial_model` one such
        as `two-norm:keep=5`;
        `server_opt="adam:rate=0.1"` and `amplify="10,2"` make `layers`. Arguments of Flower's `FedAvg` have
        their meaning, see `FlowerArguments`.

    Raises
    ------
    ValueError
        The name or an option is unknown (the message lists the known ones), or a value is not allowed.
    """
    strategy: type[FlexibleStrategy]
    if isinstance(name, type):
        strategy, name = name, name.__name__
        if not issubclass(strategy, FlexibleStrategy):
            raise SettingsError(f"{name} is not derived from strategies.FlexibleStrategy")
    else:
        strategy = find("strategy", STRATEGIES, name)
    options_type, knows_all = strategy.options_type(), options is not None
    arguments = {key: values.pop(key) for key in FlowerArguments.__annotations__ if key in values}
    if arguments.keys() & {"fraction_fit", "min_fit_clients"} and "clients_per_round" in values:
        raise SettingsError(f"{name}: give either clients_per_round, or fraction_fit and min_fit_clients")
    if options is None:
        known = [*(field.name for field in fields(options_type)), *LAYERS]
        for option in values:
            if option not in known:
                hint = did_you_mean(option, known)
                raise SettingsError(f"{name} has no option {option!r}; known: {', '.join(known)}{hint}")
        options = options_type(**_built(values))
    elif values or not isinstance(options, options_type):
        raise SettingsError(f"{name} takes either options of {options_type.__name__}, or their values")
    if num_buffers:
        arrays = parameters_to_ndarrays(initial_parameters)
        layout = Layout.of(arrays, num_buffers)
        initial_parameters = FlatParameters(layout.flatten(arrays), layout)
    made = _variant(strategy, options)(initial_parameters, roster, evaluate_fn, options)
    made.arguments = FlowerArguments(**arguments)
    made.knows_steps = not values.keys().isdisjoint(("local_steps", "local_epochs")) or knows_all
    return made


def _variant(strategy: type[FlexibleStrategy], options: Options) -> type[FlexibleStrategy]:
    """Return the class that a method's options make of it, see `VARIANTS`."""
    for name, (option, variant) in VARIANTS.items():
        method = STRATEGIES[name]
        if not issubclass(strategy, method) or issubclass(strategy, variant):
            continue
        if getattr(options, option) == getattr(method.options_type(), option):
            continue
        if strategy is method:
            return variant
        raise SettingsError(
            f"{strategy.__name__} is derived from {method.__name__}; "
            f"for {option}={getattr(options, option)} derive it from {variant.__name__}"
        )
    return strategy


def _built(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the specs among the options by what they stand for."""
    texts = {key: values.get(key, "") for key in LAYERS}
    for key, text in texts.items():
        Option(key, str).check(text)
    texts |= {key: values[key] for key in SPECS if isinstance(values.get(key), str)}
    named = {key.replace("_", "-"): text for key, text in texts.items() if text or key in NEVER_EMPTY}
    amplify = named.pop("amplify", "")
    built = {key: value for key, value in values.items() if key not in texts}
    parts = {kind: bind(kind, SERVER_PARTS[kind], spec) for kind, spec in named.items()}
    built |= server_options(parts, amplify)
    built["layers"] = (*values.get("layers", ()), *built["layers"])
    return built


def server_options(parts: Mapping[str, Part], amplify: str) -> dict[str, Any]:
    """Return the options that bound parts stand for, by the kinds of `SERVER_PARTS`.

    `amplify` is `PERIOD,FACTOR`, or empty. ValueError: a value is not allowed.
    """
    options: dict[str, Any] = {"layers": layers_of(parts.get("server-opt"), amplify)}
    if part := parts.get("lr-schedule"):
        options["lr_schedule"] = part.build()
    if part := parts.get("initial-model"):
        options["initial_model"] = part.build
    if part := parts.get("select"):
        options["select"] = partial(_selection, part)
    return options


def _selection(part: Part, roster: Roster, seed: int) -> Selection | None:
    made: Selection | None = part.build(roster, seed)
    if part.factory is not of_method:
        dotted.expect("select", part.name, made, Selection, "derive it from strategies.Selection")
    return made


def layers_of(server_opt: Part | None, amplify: str) -> tuple[LayerFactory, ...]:
    """Return the layers on top of a method, the lowest one first; see `server_options`."""
    layers: list[LayerFactory] = []
    if server_opt:
        layers.append(partial(server_opt.factory, **server_opt.options))
    if amplify:
        try:
            period, factor = (kind(text) for kind, text in zip((int, float), amplify.split(","), strict=True))
        except ValueError:
            raise SettingsError(f"amplify {amplify!r} is not PERIOD,FACTOR such as 10,2.0") from None
        if not 1 <= factor < math.inf:
            raise SettingsError(f"amplify: the factor is {factor}; it must be at least 1")
        layers.append(partial(Amplification, period=int(period), factor=factor))
    for layer in layers:
        made = layer(np.zeros(0))  # checks the values
        if server_opt:
            dotted.expect("server-opt", server_opt.name, made, Layer, "derive it from ServerOptimizer")
    return tuple(layers)
