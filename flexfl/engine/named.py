"""The parts that settings name, whatever their kind: to check, to list and to recognise them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clients.environment import trace_specs
from clients.rules import rule_named
from clients.tuning import COHORTS
from flexfl import dotted
from flexfl.config import Settings
from flexfl.engine.methods import strategy_options, strategy_type
from flexfl.specs import bind, find, parse
from flexfl.tasks import MODELS, PARTITIONS, SIZES, TASKS
from strategies import SCHEDULES, STRATEGIES
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from traces import TRACES

REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "strategy": STRATEGIES,
    "task": TASKS,
    "model": MODELS,
    "partition": PARTITIONS,
    "sizes": SIZES,
    "trace": TRACES,
    "lr-schedule": SCHEDULES,
    "server-opt": SERVER_OPTIMIZERS,
    "cohort": COHORTS,
}
"""What the settings that name a part accept, but for dotted names."""


def named_parts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and spec of every part that settings name; a setting, by kebab-case key, may be a list."""
    for kind in REGISTRIES:
        given = values.get(kind, "")
        for text in given if isinstance(given, list) else [given]:
            for spec in trace_specs(text) if kind == "trace" else [text]:
                if spec:
                    yield kind, spec


def check_names(settings: Settings) -> None:
    """Check the names and options of all parts, before any of them is made.

    Raises
    ------
    ValueError
        There is no such part, or it has no such option.
    """
    strategy_options(settings)
    for kind, spec in named_parts(settings.as_mapping()):
        if kind != "strategy":
            bind(kind, REGISTRIES[kind], spec)


def own_sources(settings: Settings) -> dict[str, str]:
    """Return a hash of the file that defines each part with a dotted name, by that name."""
    parts = {}
    for kind, spec in named_parts(settings.as_mapping()):
        name = parse(kind, spec).name
        if dotted.is_dotted(kind, name):
            parts[name] = find(kind, REGISTRIES[kind], name)
            if kind == "strategy" and dotted.is_dotted("rule", rule := strategy_type(name).rule.name):
                parts[rule] = rule_named(rule)
    return {name: _hash(part) for name, part in sorted(parts.items())}


def _hash(part: Any) -> str:
    """Return the first digits of the SHA-256 of the file that defines a part."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(part))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return "unknown"
