"""The output of `--list`: every name that a setting accepts, with its options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, fields
from textwrap import wrap
from typing import Any

from clients.tuning import COHORTS
from flexfl.config import Settings
from flexfl.engine.loggers.registry import LOGGERS
from flexfl.specs import options_of
from flexfl.tasks import MODELS, PARTITIONS, SIZES, TASKS
from strategies import SCHEDULES, STRATEGIES, Options
from strategies.memory.table import TableOptions
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from strategies.sequential_sgd import SequentialSGD
from traces import TRACES

WIDTH = 80
# A strategy's options that have a flag of their own are not listed.
FLAGS = {field.name.replace("_", "-") for field in fields(Settings)}

REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "--task": TASKS,
    "--model": MODELS,
    "--partition": PARTITIONS,
    "--sizes": SIZES,
    "--trace": TRACES,
    "--lr-schedule": SCHEDULES,
    "--server-opt": SERVER_OPTIMIZERS,
    "--cohort": COHORTS,
    "--log": LOGGERS,
}


def listing() -> Iterator[str]:
    """Yield the lines: for each setting the names, each with its summary and a line for every option."""
    general = set(options_of(Options)) - FLAGS
    yield "Options are set by NAME:KEY=VALUE,KEY=VALUE; they are shown with their defaults."
    yield ""
    yield "--option, for every strategy"
    yield from _options(Options, general)
    yield ""
    for needed, names in methods_by_need().items():
        yield f"--strategy, {needed}"
        for name in names:
            strategy, options = STRATEGIES[name], STRATEGIES[name].options_type()
            yield from _summary(name, strategy)
            yield from _wrapped(f"For {strategy.suits}.")
            yield from _options(options, set(options_of(options)) - general - FLAGS)
        yield ""
    for flag, registry in REGISTRIES.items():
        yield flag
        for name, factory in registry.items():
            yield from _summary(name, factory)
            yield from _options(factory, options_of(factory))
        yield ""


def allowed(setting: Field[Any]) -> str:
    """Return in words what a setting may be, where only some values are allowed; not of specs."""
    if setting.metadata["allowed"]:
        return str(setting.metadata["allowed"])
    key = setting.name.replace("_", "-")
    if key in ("cohort", "log"):
        return " | ".join(REGISTRIES[f"--{key}"])
    return options_of(Options)[key].allowed if key in options_of(Options) else ""


def methods_by_need() -> dict[str, list[str]]:
    """Return the names of the methods, grouped by what they need besides the weights."""
    groups: dict[str, list[str]] = {}
    for name, strategy in STRATEGIES.items():
        if strategy is SequentialSGD:
            needed = "without clients"
        elif issubclass(strategy.options_type(), TableOptions):
            needed = "with a vector per client at the server"
        elif strategy.rule.remembers:
            needed = "with memory at the clients"
        else:
            needed = "without memory of clients"
        groups.setdefault(needed, []).append(name)
    return groups


def _summary(name: str, factory: Callable[..., Any]) -> Iterator[str]:
    """Yield a name and the first paragraph of its factory's docstring."""
    yield f"  {name}"
    paragraph = (factory.__doc__ or "").strip().partition("\n\n")[0]
    yield from _wrapped(paragraph)


def _wrapped(text: str) -> Iterator[str]:
    """Yield a text in lines."""
    for line in wrap(" ".join(text.split()), WIDTH - 4, break_on_hyphens=False):
        yield f"    {line}"


def _options(factory: Callable[..., Any], shown: Collection[str]) -> Iterator[str]:
    """Yield options as users write them, with their defaults, and beside them the values allowed."""
    lines = {}
    for key, option in options_of(factory).items():
        if key in shown:
            default = str(option.default).lower() if option.kind is bool else option.default
            lines[f"{key}={default}"] = option.allowed
    width = max(map(len, lines), default=0)
    for setting, values in lines.items():
        first, *others = wrap(values, WIDTH - width - 8) or [""]
        yield f"      {setting:{width}}  {first}".rstrip()
        yield from (" " * (width + 8) + line for line in others)
