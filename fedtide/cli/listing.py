"""The output of `--list`: every name that a setting accepts, with its options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from textwrap import wrap
from typing import Any

from fedtide.base.allowed import REQUIRED, Option, options_of
from fedtide.base.docstrings import descriptions
from fedtide.base.specs import find, parse
from fedtide.loggers.registry import LOGGERS
from fedtide.plan import FLAGGED, METHODS, REGISTRIES, own_options, strategy_type
from fedtide.tasks.metrics import function_of
from fedtide.tasks.metrics import options_of as metric_options
from strategies import FlexibleStrategy, Options
from strategies.memory.table import TableOptions
from strategies.sequential_sgd import SequentialSGD

WIDTH = 80
HOW = "Options are set by NAME:KEY=VALUE,KEY=VALUE; they are shown with their defaults."
LISTED: dict[str, Mapping[str, Callable[..., Any]]] = {**REGISTRIES, "log": LOGGERS}


def listing() -> Iterator[str]:
    """Yield the lines: for each setting the names, each with its summary and a line for every option."""
    yield HOW
    yield "A name with a dot, MODULE.NAME, is imported: see docs/extending.md."
    yield ""
    yield "--option, for every strategy"
    yield from _options({key: of for key, of in options_of(Options).items() if key not in FLAGGED})
    yield ""
    for needed, names in methods_by_need().items():
        yield f"--strategy, {needed}"
        for name in names:
            yield from _method(name, METHODS[name])
        yield ""
    for kind, registry in LISTED.items():
        if kind == "strategy":
            continue
        yield f"--{kind}"
        if kind == "metrics":  # what they are, scikit-learn says, whose import takes a second
            yield from _wrapped(f"Of scikit-learn: {', '.join(registry)}.")
        else:
            for name, factory in registry.items():
                yield from _part(name, factory)
        yield ""


def listing_of(parts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield these lines for some parts only, given by kind and spec, and what each option means.

    ValueError: there is no such part.
    """
    yield HOW
    for kind, specs in groupby(parts, key=lambda part: part[0]):
        yield ""
        yield f"--{kind}"
        for name in dict.fromkeys(parse(kind, spec).name for _, spec in specs):
            if kind == "strategy":
                yield from _method(name, strategy_type(name), explained=True)
            elif kind == "metrics":
                function = function_of(name)
                yield from _summary(name, function)
                yield from _options(metric_options(function), descriptions(function))
            else:
                yield from _part(name, find(kind, REGISTRIES[kind], name), explained=True)


def _method(name: str, strategy: type[FlexibleStrategy], explained: bool = False) -> Iterator[str]:
    """Yield a method's summary, what it suits, and its options."""
    yield from _summary(name, strategy)
    if strategy.suits:
        yield from _wrapped(f"For {strategy.suits}.")
    general = options_of(Options)
    own = {key: option for key, option in own_options(strategy).items() if key not in general}
    yield from _options(own, descriptions(strategy.options_type()) if explained else {})


def _part(name: str, factory: Callable[..., Any], explained: bool = False) -> Iterator[str]:
    """Yield the summary and the options of another part."""
    yield from _summary(name, factory)
    yield from _options(options_of(factory), descriptions(factory) if explained else {})


def methods_by_need() -> dict[str, list[str]]:
    """Return the names of the methods, grouped by what they need besides the weights."""
    groups: dict[str, list[str]] = {}
    for name, strategy in METHODS.items():
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


def _wrapped(text: str, indent: int = 4) -> Iterator[str]:
    for line in wrap(" ".join(text.split()), WIDTH - indent, break_on_hyphens=False):
        yield " " * indent + line


def _options(options: Mapping[str, Option], meanings: Mapping[str, str] = {}) -> Iterator[str]:
    """Yield options as users write them, with their defaults, the values allowed, and what they mean."""
    settings = {key: _setting(key, option) for key, option in options.items()}
    width = max(map(len, settings.values()), default=0)
    for key, option in options.items():
        values = option.allowed
        if option.default is REQUIRED:
            values = f"to be set: {values or option.kind.__name__}"
        first, *others = wrap(values, WIDTH - width - 8) or [""]
        yield f"      {settings[key]:{width}}  {first}".rstrip()
        yield from (" " * (width + 8) + line for line in others)
        yield from _wrapped(meanings.get(option.parameter, ""), 10)


def _setting(key: str, option: Option) -> str:
    if option.default is REQUIRED:
        return f"{key}="
    return f"{key}={str(option.default).lower() if option.kind is bool else option.default}"
