"""Dotted names: `my_methods.Momentum` names a custom component by module and attribute.

The module is imported from the working directory or the environment, as code that the user chose to run:
what only the folder of a run names may be somebody else's choice, and is refused before it is imported.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from fedtide import PACKAGES, ROOT
from fedtide.base.errors import SettingsError
from fedtide.base.wording import plain

CALLED_WITH: dict[str, tuple[str, ...] | None] = {
    "task": (),
    "model": ("input_shape", "num_classes"),
    "partition": ("labels", "sizes", "rng"),
    "sizes": ("num_clients", "num_examples", "rng"),
    "trace": ("num_clients", "seed"),
    "lr-schedule": (),
    "server-opt": ("weights",),
    "select": ("roster", "seed"),
    "log": ("run",),
    "metrics": None,
    "strategy": None,
    "rule": None,
}
"""What dotted names can stand for, and the positional arguments of each kind of part (None: they vary)."""

DERIVED_FROM = {
    "model": "torch.nn.Module",
    "trace": "traces.Trace",
    "select": "strategies.Selection",
    "server-opt": "strategies.Layer",
    "log": "fedtide.loggers.base.Logger",
    "lr-schedule": "collections.abc.Callable",
    "partition": "collections.abc.Sequence",
    "sizes": "collections.abc.Sequence",
}
"""What a part is derived from if it is a class; another one is not called. Strategies and rules vary."""

PROVIDED: dict[str, Callable[..., Any]] = {}
"""Parts that were given as objects, by the names that stand for them in settings."""

OURS = ("clients.rules.", "fedtide.tasks.", "strategies.", "traces.", "flwr.server.strategy.", "python.")
"""How the names of parts begin that come with fedtide or Flower, or were given as objects."""

SEPARATORS = {"trace": "+", "log": ","}
"""What stands between the names of several parts in one setting."""

_named_by: dict[tuple[str, str], str] = {}
"""The file of a folder that names a part of anybody else's, by kind and name; empty: the user names it."""


def named(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return kind and name of each part of anybody else's that settings, by kebab-case key, name."""
    found = []
    for kind in CALLED_WITH:
        given = values.get(kind, "")
        for text in given if isinstance(given, list) else [given]:
            for spec in str(text).split(SEPARATORS[kind]) if kind in SEPARATORS else [str(text)]:
                name = spec.partition(":")[0].strip()
                if is_dotted(kind, name) and not name.startswith(OURS):
                    found.append((kind, name))
    return found


def trust(values: Mapping[str, Any]) -> None:
    """Let this process import the parts in settings that the user has chosen, or has decided to trust."""
    _named_by.update(dict.fromkeys(named(values), ""))


def distrust(values: Mapping[str, Any], file: str) -> None:
    """Refuse to import the parts in settings that a file has, unless the user has chosen them as well."""
    for part in named(values):
        _named_by.setdefault(part, file)


def provide(name: str, part: Callable[..., Any]) -> str:
    """Let a dotted name stand for a part that no other process can import; return the name."""
    dotted = f"python.{name}"
    PROVIDED[dotted] = part
    return dotted


def shown(text: str) -> str:
    """Return a text for readers: classes and functions given as objects have their own names."""
    return re.sub(r"\bpython\.(\w+)__[0-9a-f]{10}\b", r"\1", text)


def is_dotted(kind: str, name: str) -> bool:
    """Whether a name is a dotted one, of a kind that may be."""
    words = name.split(".")
    return kind in CALLED_WITH and len(words) > 1 and all(word.isidentifier() for word in words)


def load(kind: str, name: str) -> Any:
    """Import the part that a dotted name, MODULE.ATTRIBUTE, stands for; `kind` is one of `CALLED_WITH`.

    SettingsError: only a folder names it, there is no such module or attribute, or what it has under this
    name cannot be called as this kind of part is. What a module raises while it is imported passes.
    """
    part = f"{kind} {name}"
    if name.startswith("python."):
        if name not in PROVIDED:
            raise SettingsError(f"{part} was an object in another program; give it again")
        _check_call(kind, name, PROVIDED[name])
        return PROVIDED[name]
    if file := _named_by.get((kind, name)):
        others = plain(", ".join(" ".join(one) for one, by in _named_by.items() if by == file))
        advice = "if you have read it, add --trust (in Python, trust=True), or name it yourself"
        raise SettingsError(f"{file} names code that is not of fedtide: {others}; {advice}")
    module_name, _, attribute = name.rpartition(".")
    module = _import(part, module_name)
    if not hasattr(module, attribute):
        where = getattr(module, "__file__", None) or module_name
        callables = {key: value for key, value in vars(module).items() if callable(value)}
        own = [key for key, value in callables.items() if getattr(value, "__module__", None) == module_name]
        defined = f"it defines {', '.join(own)}" if own else "it defines nothing that could be meant"
        raise SettingsError(f"{part}: {where} has no {attribute!r}; {_if_hidden(name) or defined}")
    found = getattr(module, attribute)
    called = inspect.unwrap(found.func if isinstance(found, partial) else found)
    if not isinstance(called, type | FunctionType):  # os.kill can be called as a trace is
        kinds = "a class or a function, written in Python"
        raise SettingsError(f"{part} is of type {type(found).__name__}; it must be {kinds}")
    if isinstance(called, type) and kind in DERIVED_FROM and not issubclass(called, _base(kind)):
        raise SettingsError(f"{part} is a class that is not derived from {DERIVED_FROM[kind]}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise SettingsError(f"{part} is abstract: its class does not define {missing}")
    _check_call(kind, name, found)
    return found


def expect(kind: str, text: str, made: Any, wanted: type, advice: str) -> None:
    """Raise SettingsError, with advice, if what a factory has made is not what its kind of part is."""
    if not isinstance(made, wanted):
        name = text.partition(":")[0].strip()
        raise SettingsError(f"{kind} {name} gives a {type(made).__name__}, not a {wanted.__name__}: {advice}")


def modules_here() -> Iterator[Path]:
    """Yield the files and package folders in the working directory from which modules have been imported."""
    here = Path.cwd()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and file and Path(file) == here / f"{name}.py":
            yield Path(file)
        elif "." not in name and str(here / name) in [*getattr(module, "__path__", [])]:
            yield here / name


def _import(part: str, name: str) -> ModuleType:
    """Import a module, from the working directory if it is neither in the program's own nor in PYTHONPATH."""
    here, installed = os.getcwd(), sysconfig.get_path("stdlib")
    if here not in sys.path and not f"{name}.".startswith(OURS):
        sys.path.insert(sys.path.index(installed) if installed in sys.path else len(sys.path), here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{name}.".startswith(f"{error.name}.")):
            raise
        places = f"neither in {here} nor in the environment"
        raise SettingsError(
            f"{part}: there is no module {error.name!r}, {_if_hidden(name) or places}"
        ) from None
    except SystemExit as error:
        raise ImportError(f"{part}: importing {name} ends the program: SystemExit: {error}") from error


def _base(kind: str) -> type:
    """Return what classes of a kind of part are derived from."""
    module, _, name = DERIVED_FROM[kind].rpartition(".")
    base: type = getattr(importlib.import_module(module), name)
    return base


def _if_hidden(name: str) -> str:
    """Return what to do where a package of this program has the name of the user's own."""
    here, package = Path.cwd(), name.partition(".")[0]
    own = [path for path in (here / package, here / f"{package}.py") if path.exists()]
    hidden = own and package in PACKAGES and here != ROOT
    return f"as {package} is a package of fedtide: rename {own[0]}" if hidden else ""


def _check_call(kind: str, name: str, found: Callable[..., Any]) -> None:
    """Check that a part can be called with the positional arguments of its kind."""
    names = CALLED_WITH[kind]
    if names is None:
        return
    try:
        signature = inspect.signature(found)
        keywords = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        signature.bind(*names, **keywords)
    except (TypeError, ValueError) as error:
        call = ", ".join((*names, "*, options"))
        said = f"{kind} {name} has to be called as {name}({call}): {error}"
        raise SettingsError(f"{said}; wrap what a library has in such a function") from None
