"""The parts that settings name, whatever their kind: to check, list and recognise them, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from clients.environment import model_name, task_source, trace_specs
from clients.gradients.oracles import COHORTS
from fedtide.config import Settings
from fedtide.engine.memory_check import check_clients
from fedtide.engine.methods import METHODS, Method, method_of, own_options
from fedtide.ground import dotted
from fedtide.ground.allowed import options_of
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import bind, parse
from fedtide.tasks import MODELS, PARTITIONS, SIZES, TASKS
from strategies import SCHEDULES, SELECTIONS
from strategies.parts.initial_model import INITIAL_MODELS
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from traces import TRACES

REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "strategy": METHODS,
    "task": TASKS,
    "model": MODELS,
    "partition": PARTITIONS,
    "sizes": SIZES,
    "trace": TRACES,
    "lr-schedule": SCHEDULES,
    "server-opt": SERVER_OPTIMIZERS,
    "initial-model": INITIAL_MODELS,
    "select": SELECTIONS,
    "cohort": COHORTS,
}
"""What the settings that name a part accept, but for dotted names."""


GIVEN = {"data_dir", "local_steps"}  # options of parts that have the value of the setting unless set


def named_parts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and spec of every part that settings name; a setting, by kebab-case key, may be a list."""
    for kind in REGISTRIES:
        given = values.get(kind, "")
        for text in given if isinstance(given, list) else [given]:
            for spec in trace_specs(text) if kind == "trace" else [text]:
                if spec:
                    yield kind, spec


def check(settings: Settings, virtual: bool = True) -> Method:
    """Check the settings of a run, as far as that takes no time and no PyTorch; return the method.

    `virtual`: whether the engine of the settings simulates the clients. ValueError: the settings are invalid
    or do not fit together.
    """
    method = method_of(settings)
    for kind, spec in named_parts(settings.as_mapping()):
        if kind != "strategy":
            bind(kind, REGISTRIES[kind], spec)
    if virtual and settings.engine == "ray":
        require_ray("take --engine inline")
    task_source(settings)
    check_clients(settings.num_clients)
    return method


def require_ray(otherwise: str) -> None:
    """Raise ValueError, which says what to do otherwise, where Ray is not installed."""
    if find_spec("ray") is None:
        raise SettingsError(f"Ray is not installed: pip install ray, or {otherwise}")


def resolved(settings: Settings) -> dict[str, str]:
    """Return the specs of all parts of a run with every option, those included that the task decides."""
    source = task_source(settings)
    partition = settings.partition or source.default_partition or ""
    values = settings.as_mapping() | {"model": model_name(settings), "partition": partition}
    found: dict[str, list[str]] = {}
    for kind, spec in named_parts(values):
        if kind == "strategy":
            method = method_of(settings)
            known, chosen = own_options(method.strategy), vars(method.options)
        else:
            part = bind(kind, REGISTRIES[kind], spec)
            known = options_of(part.factory)
            chosen = {option.parameter: part.option(option.parameter) for option in known.values()}
            chosen |= {key: getattr(settings, key) for key in GIVEN & chosen.keys() - part.options.keys()}
        options = ",".join(f"{name}={_written(chosen[o.parameter])}" for name, o in known.items())
        found.setdefault(kind, []).append(parse(kind, spec).name + (options and f":{options}"))
    return {kind: "+".join(specs) for kind, specs in found.items()}


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def provided_parts(several: Iterable[Settings]) -> dict[str, Any]:
    """Return the parts that settings name and that were given as objects, by name."""
    named = (named_parts(settings.as_mapping()) for settings in several)
    names = {parse(kind, spec).name for parts in named for kind, spec in parts}
    return {name: part for name, part in dotted.PROVIDED.items() if name in names}
