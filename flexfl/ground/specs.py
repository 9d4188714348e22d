"""Specs: `name:key=value,key=value` names a strategy, a task, a partition or a trace, and sets its options.

Names are looked up in a registry, a dictionary of factories; dotted names are imported. The options of a
factory are its keyword-only parameters; their annotations (int, float, str or bool) determine how values are
parsed. What they may be is told by `Literal["a", "b"]`, `Annotated[float, "from 0 to 1"]`, or `allowed` in a
field's metadata.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from flexfl.ground import dotted

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

_KINDS: dict[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
}

# Products of larger numbers leave what 64 bits can hold; nothing that an option says is that large.
_MOST: dict[type, float] = {int: 10**15, float: 1e100}


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
    """An option of a factory: the parameter, its type, its default, and in words what it may be.

    Where it has no default, that is `REQUIRED`.
    """

    parameter: str
    kind: type
    default: Any
    allowed: str = ""


REQUIRED = inspect.Parameter.empty


def options_of(factory: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a factory, by the names that users write.

    These are its keyword-only parameters of type int, float, str or bool; others can be set in code only.
    """
    hints, told = _hints(factory), _told(factory)
    own = (p for p in inspect.signature(factory).parameters.values() if p.kind is p.KEYWORD_ONLY)
    options = as_options(p.replace(annotation=hints.get(p.name, p.annotation)) for p in own)
    return {key: replace(o, allowed=told.get(o.parameter) or o.allowed) for key, o in options.items()}


def as_options(parameters: Iterable[inspect.Parameter]) -> dict[str, Option]:
    """Return those of some parameters that users can set; one without annotation is of its default's type."""
    named: dict[Any, Any] = {kind.__name__: kind for kind in _KINDS}
    options = {}
    for p in parameters:
        annotation = type(p.default) if p.annotation is p.empty else p.annotation
        kind, allowed = _declared(named.get(annotation, annotation))
        if kind in _KINDS:
            options[p.name.replace("_", "-")] = Option(p.name, kind, p.default, allowed)
    return options


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a factory's parameters, if they can be resolved."""
    of_class = isinstance(factory, type) and not is_dataclass(factory)
    annotated: Any = inspect.unwrap(getattr(factory, "__init__") if of_class else factory)  # noqa: B009
    namespace = getattr(annotated, "__globals__", None)
    if inspect.isfunction(annotated):  # what it returns may be imported for a type checker only
        told = {key: value for key, value in annotated.__annotations__.items() if key != "return"}
        annotated = SimpleNamespace(__annotations__=told)
    try:
        return get_type_hints(annotated, namespace, include_extras=True)
    except Exception:  # somebody else's code: names that are imported for a type checker only, for example
        return {}


def _told(factory: Callable[..., Any]) -> dict[str, str]:
    """Return what the fields of a dataclass may be, in words, where they say so."""
    declared = fields(factory) if is_dataclass(factory) else ()
    return {f.name: str(f.metadata["allowed"]) for f in declared if "allowed" in f.metadata}


def _declared(annotation: Any) -> tuple[Any, str]:
    """Return the type that an annotation stands for, and what it says about the values."""
    if get_origin(annotation) is Literal:
        return str, " | ".join(get_args(annotation))
    if get_origin(annotation) is Annotated:
        kind, *told = get_args(annotation)
        return kind, str(told[0])
    return annotation, "true | false" if annotation is bool else ""


def find(kind: str, registry: Mapping[str, Any], name: str) -> Any:
    """Look up a name, or import what a dotted one stands for; the error for an unknown one lists all."""
    if name in registry:
        return registry[name]
    if dotted.is_dotted(kind, name):
        return dotted.load(kind, name)
    hint = did_you_mean(name, registry)
    hint += "; options follow a name and a colon, without spaces" if "=" in name else ""
    hint += "; several values are separated by spaces" if "," in name else ""
    raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(registry)}{hint}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the known name that is most like an unknown one, if one is."""
    similar = get_close_matches(name.lower().replace("_", "-"), known, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def check_kind(option: str, kind: type, value: Any) -> None:
    """Refuse a value of another type than the option's; every whole number is a number, but True is none.

    Raises
    ------
    ValueError
        Names the option, the value and what it must be.
    """
    accepted, expected = _KINDS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{option} is {value!r}; it must be {expected}")


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
    try:
        spec = parse(kind, text)
    except ValueError as error:
        options = options_of(registry[name]) if (name := text.partition(":")[0].strip()) in registry else {}
        such_as = next((f"; write {name}:{key}={o.default}, say" for key, o in options.items()), "")
        raise ValueError(f"{error}{such_as}") from None
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
        raise ValueError(f"{where}={text} is not {_KINDS[kind][1]}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}={text} is not a finite number")
    if kind in _MOST and value and not 1 / _MOST[kind] <= abs(value) <= _MOST[kind]:
        bound = f"large; give at most {_MOST[kind]:g}"
        if abs(value) < 1:
            bound = f"small; give 0, or at least {1 / _MOST[kind]:g}"
        raise ValueError(f"{where}={text[:40]} is too {bound}")
    return value
