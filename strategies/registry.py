"""The methods by name, and how they are made."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flwr.common import Parameters, parameters_to_ndarrays

from fedtide.ground.allowed import Option, did_you_mean
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import bind, build, find
from strategies import FlatParameters, FlexibleStrategy, Layout, Options, Roster
from strategies.amplified_scaffold import AmplifiedScaffold
from strategies.apfl import APFL
from strategies.cafed import CAFed
from strategies.core.app import FlowerArguments
from strategies.core.options import SCHEDULES
from strategies.core.strategy import EvaluateFn
from strategies.efl import EFL
from strategies.f3ast import F3AST
from strategies.fedacg import FedACG
from strategies.fedasync import FedAsync
from strategies.fedau import FedAU
from strategies.fedavg import FedAvg
from strategies.fedawe import FedAWE
from strategies.fedbuff import FedBuff
from strategies.feddyn import FedDyn
from strategies.fedexp import FedExP
from strategies.fedgate import FedGATE
from strategies.fedlaavg import FedLaAvg
from strategies.fedlaavg_client_memory import FedLaAvgClientMemory
from strategies.fednova import FedNova, FedNovaProximal
from strategies.fedprox import FedProx
from strategies.fedsgd import FedSGD
from strategies.fedstale import FedStale
from strategies.fedvarp import FedVARP
from strategies.focus import Focus
from strategies.focus_client_memory import FocusClientMemory
from strategies.ghbm import GHBM
from strategies.mifa import MIFA
from strategies.mimic import MimiC
from strategies.mimic_client_memory import MimiCClientMemory
from strategies.parts.initial_model import INITIAL_MODELS, initial_model_of
from strategies.parts.layering import layers_of
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from strategies.pfedme import PFedMe
from strategies.scaffold import Scaffold
from strategies.schemes import SchemeA, SchemeB, SchemeC
from strategies.selection import SELECTIONS, selection_of
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


LAYERS = ("server_opt", "amplify")  # what `make` takes for `layers`, too


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
    else:
        strategy = find("strategy", STRATEGIES, name)
    options_type = strategy.options_type()
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
    built = {key: value for key, value in values.items() if key not in LAYERS}
    if isinstance(select := values.get("select"), str):
        built["select"] = selection_of(bind("select", SELECTIONS, select))
    specs = {key: values.get(key, "") for key in LAYERS}
    for key, text in specs.items():
        Option(key, str).check(text)
    if isinstance(initial := values.get("initial_model"), str):
        built["initial_model"] = initial_model_of(
            bind("initial-model", INITIAL_MODELS, initial) if initial else None
        )
    server_opt = bind("server-opt", SERVER_OPTIMIZERS, specs["server_opt"]) if specs["server_opt"] else None
    if layers := layers_of(server_opt, specs["amplify"]):
        built["layers"] = (*values.get("layers", ()), *layers)
    if isinstance(schedule := values.get("lr_schedule"), str):
        built["lr_schedule"] = build("lr-schedule", SCHEDULES, schedule)
    return built
