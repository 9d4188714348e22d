"""Settings from keyword arguments, whose parts may be objects."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedtide.config.settings import shown
from fedtide.engine.parts import REGISTRIES
from fedtide.ground import dotted
from fedtide.ground.errors import SettingsError
from traces import Trace


def setting_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by kebab-case key; objects become the names of custom components.

    A list, tuple, range or array is several values, of which each may be an object.
    """
    values = {}
    for name, value in given.items():
        kind = name.replace("_", "-")
        several = isinstance(value, list | tuple | range | np.ndarray)
        named = [_named(kind, part) for part in value] if several else _named(kind, value)
        values[kind] = named
    return values


def _named(kind: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind not in REGISTRIES or isinstance(value, str):
        return value
    factory = _factory(kind, value)
    if factory is value and _is_importable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return dotted.provide(f"{_name_of(value)}_{_digest(value)}", factory)


def _is_importable(value: Any) -> bool:
    """Whether another process can import a class or function; not what a notebook or a function defines."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    return module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is value


def _factory(kind: str, value: Any) -> Callable[..., Any]:
    """Return what makes the part: the object if it is to be called, else a function that returns it.

    SettingsError: it is neither.
    """
    if kind == "model" and _is_module(value):
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


def _is_module(value: Any) -> bool:
    """Whether an object is a PyTorch model, without importing PyTorch."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module)


def _positional(value: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(value).parameters.values() if p.kind in kinds]


def _name_of(value: Any) -> str:
    name = getattr(value, "__name__", type(value).__name__)
    return name if name.isidentifier() else type(value).__name__


def _digest(value: Any) -> str:
    """Return digits that stand for an object: for its source, or for the numbers that it has."""
    return hashlib.sha256(repr(_content(value)).encode()).hexdigest()[:10]


def _content(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, type) or inspect.isroutine(value):
        try:
            return inspect.getsource(value)
        except (OSError, TypeError):
            return value.__qualname__
    if isinstance(value, Mapping):
        return [(str(key), _content(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_content(part) for part in value]
    if hasattr(value, "__dict__"):
        return type(value).__qualname__, _content(vars(value))
    return value
