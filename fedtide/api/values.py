"""Settings from keyword arguments, whose parts may be objects."""

from __future__ import annotations

import inspect
import os
import sys
import uuid
from collections.abc import Callable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.base.fingerprint import fingerprint
from fedtide.config.settings import shown
from traces import Trace

_FIRST: dict[str, str | None] = {}
"""What importable parts were when they were first given, by name."""


def setting_values(
    given: Mapping[str, Any], unknown: Callable[[str], object] = lambda name: None
) -> dict[str, Any]:
    """Return settings by kebab-case key; objects become the names of custom components.

    A list is several values, of which each may be an object; so are tuples, ranges, generators and arrays.
    `unknown` is called with the names of objects that no other call can recognise.
    """
    kinds = {name: name.replace("_", "-") for name in given}
    values = {kinds[name]: _plain(kinds[name], value, unknown) for name, value in given.items()}
    for kind, value in values.items():
        names = {*value} if isinstance(value, list) and kind in dotted.CALLED_WITH else ()
        if len({dotted.shown(name) for name in names}) < len(names):
            alike = ", ".join(sorted({dotted.shown(name) for name in names}))
            raise SettingsError(f"{kind}: several of {alike} have the same name; give one another __name__")
    return values


def _plain(kind: str, value: Any, unknown: Callable[[str], object]) -> Any:
    if hasattr(value, "tolist"):  # numbers of NumPy, pandas and PyTorch
        value = value.tolist()
    if isinstance(value, list | tuple | range | Iterator | KeysView | ValuesView):
        return [_plain(kind, part, unknown) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind not in dotted.CALLED_WITH or isinstance(value, str):
        return value
    digits, factory = fingerprint(value), _factory(kind, value)
    if factory is value and _is_importable(value):
        name = f"{value.__module__}.{value.__qualname__}"
        if _FIRST.setdefault(name, digits) == digits:
            return name  # else its module is no longer what another process imports
    # What tells others apart is a part of their names.
    own = getattr(value, "__name__", "")
    named = factory is value and own.isidentifier()
    readable = own if own.isidentifier() else type(value).__name__
    name = f"{readable}{'__' if named else '_'}{(digits or uuid.uuid4().hex)[:10]}"
    name = dotted.provide(name, factory)
    if digits is None:
        unknown(f"{kind} {name}")
    return name


def _is_importable(value: Any) -> bool:
    """Whether another process can import a class or function; not what a notebook or a function defines."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    return module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is value


def _factory(kind: str, value: Any) -> Callable[..., Any]:
    """Return a function that makes the part: the object itself if it is one, else one that returns it.

    SettingsError: it is neither.
    """
    if kind == "model" and "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module):
        name = type(value).__name__
        raise SettingsError(
            f"model: a {name} that was made already; every run makes its own: give lambda: {name}(...)"
        )
    if kind == "model" and callable(value) and not _positional(value):
        return lambda input_shape, num_classes: value()
    if kind == "trace" and isinstance(value, Trace):
        return lambda num_clients, seed: value
    if isinstance(value, type) or (callable(value) and not hasattr(value, "federate")):
        return value  # type: ignore[no-any-return]
    if hasattr(value, "federate") or hasattr(value, "aggregate_fit"):
        return lambda: value
    raise SettingsError(f"{kind} is {shown(value)}; give a name, a class or a function")


def _positional(value: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(value).parameters.values() if p.kind in kinds]
