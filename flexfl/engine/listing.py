"""What `--list` shows: every name that a setting knows, with its options and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rich.console import Console

from clients.tuning import COHORTS
from flexfl.config import Settings, options_of
from flexfl.tasks import MODELS, PARTITIONS, SIZES, TASKS
from strategies import SCHEDULES, STRATEGIES, Options
from traces import TRACES

# A strategy's options that have a flag of their own are not listed.
FLAGS = {field.name.replace("_", "-") for field in fields(Settings)}

REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "--task": TASKS,
    "--model": MODELS,
    "--partition": PARTITIONS,
    "--sizes": SIZES,
    "--trace": TRACES,
    "--lr-schedule": SCHEDULES,
    "--cohort": COHORTS,
}


def print_list(console: Console) -> None:
    """Print all registries: each name as a spec with its default options, and what it stands for."""
    general = set(options_of(Options)) - FLAGS
    _print(console, "--option, for every strategy", [("", "", _options(Options, general))])
    strategies = []
    for name, strategy in STRATEGIES.items():
        own = set(options_of(strategy.options_type())) - general - FLAGS
        strategies.append((name, _summary(strategy), _options(strategy.options_type(), own)))
    _print(console, "--strategy", strategies)
    for flag, registry in REGISTRIES.items():
        _print(
            console, flag, [(n, _summary(f), _options(f, set(options_of(f)))) for n, f in registry.items()]
        )


def _print(console: Console, title: str, rows: list[tuple[str, str, str]]) -> None:
    console.print(title, style="bold", markup=False, highlight=False)
    for name, summary, options in rows:
        spec = ":".join(filter(None, [name, options]))
        console.print(f"  {spec}", style="cyan", markup=False, highlight=False, soft_wrap=True)
        if summary:
            console.print(f"      {summary}", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _summary(factory: Callable[..., Any]) -> str:
    """First paragraph of the docstring, on one line."""
    return " ".join((factory.__doc__ or "").strip().partition("\n\n")[0].split())


def _options(factory: Callable[..., Any], shown: set[str]) -> str:
    """The options as one would write them, with their defaults."""
    known = options_of(factory).items()
    return ",".join(f"{key}={_text(option.default)}" for key, option in known if key in shown)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
