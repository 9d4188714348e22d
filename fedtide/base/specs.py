"""Specs: `name:key=value,key=value` names a strategy, a task, a partition or a trace, and sets its options.

Names are looked up in a registry, a dictionary of factories; dotted names are imported. The options of a
factory are its keyword-only parameters; how their values are parsed, and what they may be, their annotations
declare, see `fedtide.base.allowed`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedtide.base import dotted
from fedtide.base.allowed import REQUIRED, Option, did_you_mean, options_of
from fedtide.base.errors import SettingsError

# Products of larger numbers leave what 64 bits can hold; nothing that an option says is that large.
_LARGEST: dict[type, float] = {int: 10**15, float: 1e100}


VALUE_FIRST = {
    ("task", "hf"): "name",
    ("task", "folder"): "path",
    ("task", "text"): "folder",
    ("model", "hf-lm"): "path",
    ("trace", "phones"): "source",
}
"""The option of a part whose value may come first, without its key: `hf:NAME,label=digit`."""


@dataclass(frozen=True)
class Spec:
    """A parsed spec: the name, and the options as text."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A part that a spec names."""

    name: str
    factory: Callable[..., Any]  # the class or function that makes it
    options: Mapping[str, Any]  # that the spec sets, by parameter name
    known: Mapping[str, Option]  # all that a spec can set, by the names that users write

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the options, by parameter name."""
        return {option.parameter: option.default for option in self.known.values()}

    def takes(self, parameter: str) -> bool:
        """Whether the factory has a parameter of this name."""
        return parameter in self._parameters

    def option(self, parameter: str) -> Any:
        """Return the value of an option: the one that the spec sets, or the default."""
        return self.options.get(parameter, self._parameters[parameter].default)

    def build(self, *context: Any, **given: Any) -> Any:
        """Make the part, given the positional arguments of its factory, and values of options.

        Options that the spec sets keep their values; those that the factory does not have are left out.
        """
        taken = {parameter: value for parameter, value in given.items() if self.takes(parameter)}
        return self.factory(*context, **{**taken, **self.options})

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.factory).parameters


def parse(kind: str, text: str) -> Spec:
    """Parse a spec such as `dirichlet:alpha=0.5`; errors name the kind ("trace") and the position."""
    name, colon, options = text.partition(":")
    if not name.strip():
        raise SettingsError(f"{kind} {text!r}: a name is missing at character 1")
    if colon and not options.strip():
        raise SettingsError(f"{kind} {text!r}: an option is missing at character {len(text) + 1}")
    first = VALUE_FIRST.get((kind, name.strip()), "")
    if first and colon and "=" not in options.partition(",")[0]:
        options = f"{first}={options}"
    return Spec(name.strip(), parse_options(f"{kind} {text!r}", options, len(name) + 1))


def split_specs(text: str) -> list[str]:
    """Split specs at commas, but not between the options of one: `a:b=1,c=2,d` are `a:b=1,c=2` and `d`."""
    specs: list[str] = []
    for part in text.split(",") if text.strip() else []:
        if specs and "=" in part and ":" not in part.partition("=")[0]:
            specs[-1] += f",{part.strip()}"
        else:
            specs.append(part.strip())
    return specs


def parse_options(where: str, text: str, offset: int = 0) -> dict[str, str]:
    """Parse `key=value,key=value`.

    `where` is where the options were given, and `offset` the number of characters before `text` in what the
    user wrote; both are for messages.
    """
    options: dict[str, str] = {}
    position = offset + 1
    for part in text.split(",") if text.strip() else []:
        key, equals, value = part.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise SettingsError(f"{where}: {part!r} at character {position} is not key=value")
        if key.strip() in options:
            raise SettingsError(f"{where}: {key.strip()!r} at character {position} is given twice")
        options[key.strip()] = value.strip()
        position += len(part) + 1
    return options


def find(kind: str, registry: Mapping[str, Any], name: str) -> Any:
    """Look up a name, or import what a dotted one stands for; the error for an unknown one lists all."""
    if name in registry:
        return registry[name]
    if dotted.is_dotted(kind, name):
        return dotted.load(kind, name)
    hint = did_you_mean(name, registry)
    hint += "; options follow a name and a colon, without spaces" if "=" in name else ""
    hint += "; several values are separated by spaces" if "," in name else ""
    raise SettingsError(f"unknown {kind} {name!r}; known: {', '.join(registry)}{hint}")


def convert(owner: str, known: Mapping[str, Option], options: Mapping[str, str]) -> dict[str, Any]:
    """Convert options from text to their types; return them by parameter name."""
    values = {}
    for key, text in options.items():
        if key not in known:
            listed = f"known: {', '.join(known)}" if known else "it has none"
            raise SettingsError(f"{owner} has no option {key!r}; {listed}{did_you_mean(key, known)}")
        value = known[key].parse(text, f"{owner}: ")
        _check_size(owner, key, value)
        values[known[key].parameter] = value
    for key, option in known.items():
        if option.default is REQUIRED and key not in options:
            raise SettingsError(f"{owner} needs the option {key}: write {owner.split()[-1]}:{key}=...")
    return values


def bind(kind: str, registry: Mapping[str, Callable[..., Any]], text: str) -> Part:
    """Return the part that a spec names; SettingsError if there is none, or an option is not allowed."""
    try:
        spec = parse(kind, text)
    except SettingsError as error:
        options = options_of(registry[name]) if (name := text.partition(":")[0].strip()) in registry else {}
        values = {key: "..." if o.default in (REQUIRED, "") else o.default for key, o in options.items()}
        such_as = next((f"; for example {name}:{key}={value}" for key, value in values.items()), "")
        raise SettingsError(f"{error}{such_as}") from None
    factory = find(kind, registry, spec.name)
    known = options_of(factory)
    return Part(spec.name, factory, convert(f"{kind} {spec.name}", known, spec.options), known)


def trace_specs(text: str) -> list[str]:
    """Return the specs of the traces that `a+b` combines.

    A plus before a digit is part of a number, 1e+5, and one in the path of a file or folder part of that.
    """
    specs: list[str] = []
    for part in re.split(r"\+(?![0-9])", text):
        path = f"{specs[-1].rpartition('=')[2]}+{part.partition(',')[0]}" if specs else ""
        if "/" in part.partition(":")[0].partition(",")[0] or (path and os.path.exists(path)):
            specs[-1:] = [f"{specs[-1]}+{part}" if specs else part]
        else:
            specs.append(part)
    return specs


def _check_size(where: str, key: str, value: Any) -> None:
    """Refuse a number with which a run could leave what 64 bits can hold."""
    most = _LARGEST.get(type(value))
    if most and value and not 1 / most <= abs(value) <= most:
        limit = f"0 or at least {1 / most:g}" if abs(value) < 1 else f"at most {most:g}"
        raise SettingsError(f"{where}: {key} is {str(value)[:40]}; it must be {limit}")
