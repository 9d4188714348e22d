"""What a setting or an option may be, declared once: by the annotation of its field or parameter.

That is `Annotated[float, Range(above=0)]`, `Literal["n", "uniform"]` or a bare type. The check, its message,
`--list` and `--help` come from it. Specs are checked by `fedtide.base.specs`; for callers in Python, a
dataclass calls `check` in `__post_init__`, and a function is decorated with `checked`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from fedtide.base.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")

_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
}
_TRUTH = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)

REQUIRED = inspect.Parameter.empty
"""Default of an option that has none."""


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


@dataclass(frozen=True)
class Range:
    """The finite numbers within some bounds: at least, more than, at most, less than."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __contains__(self, value: Any) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self == Range(above=0):
            return "positive"
        if self.least is not None and self.most is not None:
            return f"from {_plain(self.least)} to {_plain(self.most)}"
        lower = (("above", self.above), ("at least", self.least))
        upper = (("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {_plain(bound)}" for word, bound in lower + upper if bound is not None)


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
Count = Annotated[int, Range(least=1)]
CountOrZero = Annotated[int, Range(least=0)]


@dataclass(frozen=True)
class Option:
    """An option of a factory: a parameter that users can set."""

    parameter: str
    kind: type  # int, float, str or bool
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()  # (): any value is allowed
    bounds: Range | str = ""  # of a number; in words, they are a note, which is not checked

    @property
    def name(self) -> str:
        """Its name as users write it."""
        return self.parameter.replace("_", "-")

    @property
    def allowed(self) -> str:
        """What it may be, in words; empty if that is any value of its type."""
        if self.kind is bool:
            return "true | false"
        return " | ".join(map(str, self.choices)) or str(self.bounds)

    def parse(self, text: str, where: str = "") -> Any:
        """Return the value that a text stands for, if it is allowed; see `check`."""
        try:
            value = _TRUTH[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            value = text[:40]
        self.check(value, where)
        return value

    def check(self, value: Any, where: str = "") -> None:
        """Raise ValueError for a value that is not allowed; `where` comes before the option's name."""
        accepted, expected = _KINDS[self.kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            raise SettingsError(f"{where}{self.name} is {value!r}; it must be {expected}")
        if isinstance(value, str) and not _is_writable(value):
            shown = value if len(value) <= 40 else value[:39] + "…"
            raise SettingsError(f"{where}{self.name} is {shown!r}: no file can hold or have such a text")
        if self.choices and value not in self.choices:
            known = [str(choice) for choice in self.choices]
            hint = did_you_mean(str(value), known)
            raise SettingsError(f"{where}{self.name} is {value!r}; choose one of {', '.join(known)}{hint}")
        if isinstance(value, Real) and not isinstance(value, int) and not math.isfinite(value):
            raise SettingsError(f"{where}{self.name} is {value}; it must be a finite number")
        if isinstance(self.bounds, Range) and value not in self.bounds:
            raise SettingsError(f"{where}{self.name} is {value}; it must be {self.bounds}")


def _is_writable(text: str) -> bool:
    """Whether a text can stand in a file of UTF-8 and be the name of one."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def options_of(factory: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a factory, by the names that users write.

    These are its keyword-only parameters of type int, float, str or bool; others can be set in code only.
    """
    own = inspect.signature(factory).parameters.values()
    return _resolved(factory, (p for p in own if p.kind is p.KEYWORD_ONLY))


def as_options(parameters: Iterable[inspect.Parameter]) -> dict[str, Option]:
    """Return those of some parameters that users can set; one without annotation is of its default's type."""
    options = {}
    for p in parameters:
        annotation = type(p.default) if p.annotation is p.empty else p.annotation
        if option := _declared(p.name, annotation, p.default):
            options[option.name] = option
    return options


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the known name that an unknown one abbreviates or resembles."""
    name, shown = name.lower().replace("_", "-").strip("-"), {one.lower(): one for one in known}
    words = {one: one.strip("-").split("-") for one in shown}
    short = [one for one, own in words.items() if "".join(word[:1] for word in own) == name]
    parts = [one for one, own in words.items() if name in (own[0], own[-1])]
    similar = short or parts or get_close_matches(name, shown, 1)
    return f"; did you mean {shown[similar[0]]}?" if similar else ""


def check(instance: Any) -> None:
    """Raise ValueError for an instance of a dataclass of which a field is not what its annotation allows."""
    cls: Any = type(instance)
    for option in _fields_of(cls):
        option.check(getattr(instance, option.parameter))


class Checked:
    """Base of a dataclass whose values are checked when it is made."""

    def __post_init__(self) -> None:
        check(self)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function, or `__init__`, so that it checks its arguments."""
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        for option in _resolved(function, parameters.values()).values():
            if option.parameter in given:
                option.check(given[option.parameter])
        return function(*args, **kwargs)

    return call


@cache
def _fields_of(cls: Any) -> tuple[Option, ...]:
    resolved = _annotations(cls)
    declared = (_declared(f.name, resolved.get(f.name, f.type), f.default) for f in fields(cls))
    return tuple(filter(None, declared))


def _resolved(factory: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> dict[str, Option]:
    """Return those of a factory's parameters that users can set."""
    known = _annotations(factory)
    return as_options(p.replace(annotation=known.get(p.name, p.annotation)) for p in parameters)


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a factory's parameters.

    Those that cannot be resolved are left out: somebody else's code may import names for a type checker only.
    """
    if is_dataclass(factory):
        assert isinstance(factory, type)
        owners: list[tuple[Any, dict[str, Any]]] = [
            (vars(cls).get("__annotations__", {}), vars(sys.modules[cls.__module__]))
            for cls in reversed(factory.__mro__)
        ]
    else:
        function: Any = inspect.unwrap(getattr(factory, "__init__") if isinstance(factory, type) else factory)  # noqa: B009
        owners = [(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {}))]
    resolved = {}
    for declared, namespace in owners:
        for name, annotation in declared.items():
            with suppress(Exception):
                resolved[name] = eval(annotation, namespace) if isinstance(annotation, str) else annotation
    return resolved


def _declared(parameter: str, annotation: Any, default: Any) -> Option | None:
    """Return the option that a parameter is, or None if users cannot set it."""
    annotation = {kind.__name__: kind for kind in _KINDS}.get(annotation, annotation)
    choices: tuple[Any, ...] = ()
    bounds: Range | str = ""
    if get_origin(annotation) is Annotated:
        annotation, bounds = get_args(annotation)[:2]
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        annotation = type(choices[0])
    if annotation not in _KINDS:
        return None
    return Option(parameter, annotation, default, choices, bounds)
