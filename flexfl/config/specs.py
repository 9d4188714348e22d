"""Specs: `name:key=value,key=value` names a strategy, a task, a partition or a trace, and sets its options.

Names are looked up in a registry, a dictionary of factories; dotted names are imported. The options of a
factory are its keyword-only parameters; their annotations (int, float, str or bool) determine how values are
parsed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from flexfl.config import dotted

_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool)}


@dataclass(frozen=True)
class Spec:
    """A parsed spec: the name, and the options as text."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


def parse(kind: str, text: str) -> Spec:
    """Parse a spec.

    Parameters
    ----------
    kind
        What the spec names, for messages ("trace").
    text
        For example `dirichlet:alpha=0.5`.

    Raises
    ------
    ValueError
        The text is not a spec; the message gives the position of the error.
    """
    name, colon, options = text.partition(":")
    if not name.strip():
        raise ValueError(f"{kind} {text!r}: a name is missing at character 1")
    if colon and not options.strip():
        raise ValueError(f"{kind} {text!r}: an option is missing at character {len(text) + 1}")
    return Spec(name.strip(), parse_options(f"{kind} {text!r}", options, len(name) + 1))


def parse_options(where: str, text: str, offset: int = 0) -> dict[str, str]:
    """Parse `key=value,key=value`.

    Parameters
    ----------
    where
        Where the options were given, for messages.
    text
        The options.
    offset
        Number of characters before `text` in what the user wrote.

    Raises
    ------
    ValueError
        A part is not `key=value`, or a key is repeated; the message gives the position.
    """
    options: dict[str, str] = {}
    position = offset + 1
    for part in text.split(",") if text.strip() else []:
        key, equals, value = part.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise ValueError(f"{where}: {part!r} at character {position} is not key=value")
        if key.strip() in options:
            raise ValueError(f"{where}: {key.strip()!r} at character {position} is given twice")
        options[key.strip()] = value.strip()
        position += len(part) + 1
    return options


@dataclass(frozen=True)
class Option:
    """An option of a factory: the parameter, its type and its default, `REQUIRED` where it has none."""

    parameter: str
    kind: type
    default: Any


REQUIRED = inspect.Parameter.empty


def options_of(factory: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a factory, by the names that users write.

    These are its keyword-only parameters of type int, float, str or bool; others can be set in code only.
    """
    return as_options(p for p in inspect.signature(factory).parameters.values() if p.kind is p.KEYWORD_ONLY)


def as_options(parameters: Iterable[inspect.Parameter]) -> dict[str, Option]:
    """Return those of some parameters that users can set; one without annotation is of its default's type."""
    options = {}
    for p in parameters:
        annotation = type(p.default) if p.annotation is p.empty else p.annotation
        kind = _KINDS.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
        if kind:
            options[p.name.replace("_", "-")] = Option(p.name, kind, p.default)
    return options


def find(kind: str, registry: Mapping[str, Any], name: str) -> Any:
    """Look up a name, or import what a dotted one stands for; the error for an unknown one lists all."""
    if name in registry:
        return registry[name]
    if dotted.is_dotted(kind, name):
        return dotted.load(kind, name)
    raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(registry)}{did_you_mean(name, registry)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the known name that is most like an unknown one, if one is."""
    similar = get_close_matches(name, known, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def convert(owner: str, known: Mapping[str, Option], options: Mapping[str, str]) -> dict[str, Any]:
    """Convert options from text to their types; return them by parameter name."""
    values = {}
    for key, text in options.items():
        if key not in known:
            listed = f"known: {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{owner} has no option {key!r}; {listed}{did_you_mean(key, known)}")
        values[known[key].parameter] = _convert(f"{owner}: {key}", known[key].kind, text)
    for key, option in known.items():
        if option.default is REQUIRED and key not in options:
            raise ValueError(f"{owner} needs the option {key}: write {owner.split()[-1]}:{key}=...")
    return values


def bind(kind: str, registry: Mapping[str, Callable[..., Any]], text: str) -> tuple[Any, dict[str, Any]]:
    """Return the factory that a spec names, and the options that it sets, by parameter name."""
    spec = parse(kind, text)
    factory = find(kind, registry, spec.name)
    return factory, convert(f"{kind} {spec.name}", options_of(factory), spec.options)


def build(kind: str, registry: Mapping[str, Callable[..., Any]], text: str, *context: Any) -> Any:
    """Call the factory that a spec names, with its options; `context` are the positional arguments."""
    factory, options = bind(kind, registry, text)
    return factory(*context, **options)


def _convert(where: str, kind: type, text: str) -> Any:
    try:
        value = _TRUTH[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{where}={text} is not {expected}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}={text} is not a finite number")
    return value
