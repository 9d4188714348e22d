"""Digits that stand for an object, for its code and its numbers, the same in every process.

Only what is known is taken apart: anything else makes the object unknown, and what was made with it is made
again rather than taken for that of another object.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import hashlib
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from functools import _lru_cache_wrapper
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np

from fedtide.base.errors import is_installed, is_ours

MAX_PATH = 1000  # characters
_ATOMS = (NoneType, EllipsisType, bool, int, float, complex, str, bytes)
_BY_NAME = (
    *(BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType),
    *(MethodDescriptorType, WrapperDescriptorType),
)
# Packages whose instances say all that they have when they are asked for what a pickle holds.
_KNOWN = {
    *("abc", "builtins", "collections", "copyreg", "dataclasses", "datetime", "decimal", "enum", "flwr"),
    *("fractions", "functools", "logging", "numpy", "operator", "pandas", "pathlib", "pyarrow", "random"),
    *("re", "scipy", "sklearn", "torch", "torchvision", "types", "typing", "uuid", "zoneinfo"),
}
# What lets code use whatever there is (by ID, as some have no hash), and attributes that do.
_ANYTHING = {
    *map(id, (eval, exec, globals, __import__, importlib.import_module, pkgutil.resolve_name)),
    *map(id, (sys.modules, os.environ, os.getenv)),
}
_GLOBALS = {"__globals__", "f_globals"}
_GLOBAL_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_OTHER_LOADS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST", "LOAD_CLOSURE"}  # not of a variable
_NOT_CONTENT = {  # of a class: what its other attributes say, or what changes nothing
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__abstractmethods__"),
    *("_abc_impl", "__orig_bases__", "__parameters__", "__firstlineno__", "__static_attributes__"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__"),
}

Parts = tuple[str | bytes, Sequence[Any]]
"""What an object is, and what it consists of."""


class _Unknown(Exception):  # noqa: N818 - not an error of anybody
    """An object that cannot be taken apart."""


class _Named(NamedTuple):
    """A module of the user's own, and the names that a function uses."""

    module: ModuleType
    names: frozenset[str]


def fingerprint(value: Any) -> str | None:
    """Return 64 hexadecimal digits that stand for an object, None if it is unknown.

    They depend on code, defaults, closures, the globals that the code names, and on all that these have in
    turn; of installed packages and of this program, on names alone.
    """
    try:
        return _Walk().digits(value)
    except Exception:  # also: whatever an object raises when it is asked for its state
        return None


class _Walk:
    """A walk through an object; what it meets again is not entered a second time."""

    def __init__(self) -> None:
        self._met: dict[Any, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the same id

    def digits(self, value: Any) -> str:
        found, waiting = hashlib.sha256(), [value]
        while waiting:
            head, parts = self._parts(waiting.pop())
            head = head.encode("utf-8", "surrogatepass") if isinstance(head, str) else head
            found.update(f"{len(head)} {len(parts)} ".encode() + head)
            waiting += reversed(parts)
        return found.hexdigest()

    def _parts(self, value: Any) -> Parts:
        kind = type(value)
        if kind in _ATOMS:
            return f"{kind.__name__} {value!r}", _of_file(value) if kind is str else ()
        if kind is tuple:
            return "tuple", value
        if id(value) in _ANYTHING:
            raise _Unknown("anything")
        if kind in (set, frozenset):
            return kind.__name__, sorted(_Walk().digits(part) for part in value)
        if kind is CodeType:
            return _code(value)
        key = id(value) if kind is not _Named else (id(value.module), value.names)
        if key in self._met:
            return f"met {self._met[key]}", ()
        self._met[key] = len(self._met)
        self._kept.append(value)
        if kind is list:
            return "list", value
        if kind in (dict, MappingProxyType):
            return "dict", [part for item in value.items() for part in item]
        if kind is _Named:
            return _of_module(value)
        if kind in (np.ndarray, np.memmap):
            return _array(value)
        if kind is FunctionType:
            return _function(value)
        if isinstance(value, type):
            return _class(value)
        return _instance(value)


def _of_file(text: str) -> Sequence[bytes]:
    """Return the digest of a file if a text is the path of one: code may read it."""
    if len(text) > MAX_PATH or not os.path.isfile(text):
        return ()
    with open(text, "rb") as file:
        return (hashlib.file_digest(file, "sha256").digest(),)


def _code(code: CodeType) -> Parts:
    about = (code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    about += (code.co_code, code.co_exceptiontable)  # type: ignore[assignment]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return f"code {about!r} {names!r}", code.co_consts


def _function(function: FunctionType) -> Parts:
    """A function that a decorator has wrapped is the decorator's, and has the wrapped one in its closure."""
    module, name = str(function.__globals__.get("__name__")), function.__code__.co_qualname
    foreign = _is_foreign(module)
    if foreign and "<" not in name:
        return f"function {module}.{name}", ()
    used = () if foreign else sorted(_globals(function).items())
    closure = [_content(cell) for cell in function.__closure__ or ()]
    state = (function.__defaults__, function.__kwdefaults__, vars(function))
    return f"function {module if foreign else ''}.{name}", [function.__code__, closure, used, *state]


def _globals(function: FunctionType) -> dict[str, Any]:
    """Return the globals that the code of a function names, and the modules that it imports."""
    codes = [*_codes(function.__code__)]
    names = frozenset(name for code in codes for name in code.co_names)
    if names & _GLOBALS:
        raise _Unknown("globals")
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    all_steps, imported = [[*_steps(code)] for code in codes], dict[str, Any]()
    for steps in all_steps:
        for i, (step, name) in enumerate(steps):
            if step == "IMPORT_NAME":
                (_, level), (_, chosen) = steps[i - 2 : i]
                module = __import__(name, function.__globals__, None, chosen, level)
                found[f"import {'.' * level}{name}"] = module
                imported |= _imported(module, chosen, steps[i + 1 :])
    everywhere = {**vars(builtins), **function.__globals__, **imported}
    for steps in all_steps:
        for i, (step, name) in enumerate(steps):
            if step.startswith("LOAD_") and step not in _OTHER_LOADS:
                value = (everywhere if step in _GLOBAL_LOADS else imported).get(name)
                if id(value) in _ANYTHING or (_is_own_module(value) and _escapes(value, steps[i + 1 :])):
                    raise _Unknown(name)
    return {name: _with(names, value) for name, value in found.items()}


def _steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the instructions of code and what they name; two that Python has made one are two again."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, tuple) and step.opname.count("_FAST") == 2:
            yield from zip(re.findall("(?:LOAD|STORE)_FAST", step.opname), step.argval, strict=True)
        elif step.opname not in ("EXTENDED_ARG", "PUSH_NULL"):
            yield step.opname, step.argval


def _imported(module: Any, chosen: Any, after: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that an import sets, and their values."""
    value: Any = module
    for step, name in after:
        if step == "IMPORT_FROM":
            value = getattr(module, name)
            module = module if chosen else value  # in `import package.module as name`
        elif step.startswith("STORE_"):
            yield name, value
        elif step not in ("SWAP", "POP_TOP"):
            return


def _escapes(value: Any, after: Sequence[tuple[str, Any]]) -> bool:
    """Whether code does more with a module of the user's own than to take by name what it has."""
    for step, name in after:
        if step not in ("LOAD_ATTR", "LOAD_METHOD") or name not in vars(value):
            break
        value = vars(value)[name]
        if not _is_own_module(value):
            return False
    return True


def _is_own_module(value: Any) -> bool:
    return isinstance(value, ModuleType) and not _is_foreign(value.__name__)


def _with(names: frozenset[str], value: Any) -> Any:
    return _Named(value, names) if isinstance(value, ModuleType) else value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _of_module(named: _Named) -> Parts:
    """Return what a function can use of a module: of the user's own, what the function names."""
    module, names = named
    if _is_foreign(module.__name__):
        if any(id(vars(module)[name]) in _ANYTHING for name in names & vars(module).keys()):
            raise _Unknown(module.__name__)
        return f"module {module.__name__}", ()
    return "module", [
        (name, _with(names, vars(module)[name])) for name in sorted(names & vars(module).keys())
    ]


def _content(cell: CellType) -> Any:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return []


def _class(kind: type) -> Parts:
    if _is_foreign(kind.__module__) and _is_importable(kind):
        return f"class {kind.__module__}.{kind.__qualname__}", ()
    content = [(key, value) for key, value in vars(kind).items() if key not in _NOT_CONTENT]
    return f"class {kind.__qualname__}", [type(kind), kind.__bases__, *content]


def _is_importable(kind: type) -> bool:
    """Whether a class is what its module has; not one that was made while the program ran."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _array(array: np.ndarray[Any, Any]) -> Parts:
    head = f"array {array.dtype.descr} {array.shape} "
    if array.dtype.hasobject:
        return head, array.ravel().tolist()
    return head.encode() + hashlib.sha256(np.ascontiguousarray(array).data).digest(), ()


def _tensor(tensor: Any) -> Parts:
    if tensor._backward_hooks:
        raise _Unknown("a hook")
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8)
    about = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device} {tensor.requires_grad} "
    return about.encode() + hashlib.sha256(flat.numpy().data).digest(), [type(tensor), vars(tensor)]


def _instance(value: Any) -> Parts:
    """Take an instance apart as a pickle does, whose content lets another process make the same one."""
    kind = type(value)
    if isinstance(value, _BY_NAME) and isinstance(getattr(value, "__self__", None), ModuleType | type | None):
        return f"{kind.__name__} {value.__qualname__} {getattr(value, '__module__', '')}", ()
    if isinstance(value, ModuleType) and _is_foreign(value.__name__):
        return f"module {value.__name__}", ()
    if isinstance(value, PurePath):
        return "path", [str(value)]
    if isinstance(value, staticmethod | classmethod):
        return kind.__name__, [value.__func__]
    if isinstance(value, property):
        return "property", [value.fget, value.fset, value.fdel]
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return _tensor(value)
    if isinstance(value, MethodType):
        return "method", [value.__func__, value.__self__]
    if isinstance(value, _lru_cache_wrapper):
        return "cached", [value.__wrapped__]
    for base in (kind,) if _is_foreign(kind.__module__) else kind.__mro__:
        if _is_foreign(base.__module__) and not _is_known(base.__module__):
            raise _Unknown(base.__module__)
    for name in ("__reduce__", "__reduce_ex__", "__getstate__"):
        made = getattr(kind, name, None)
        if isinstance(made, FunctionType) and not _is_foreign(str(made.__globals__.get("__name__"))):
            raise _Unknown(name)  # which may leave something out
    if kind in copyreg.dispatch_table:
        reduced: Any = copyreg.dispatch_table[kind](value)
    else:
        reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return f"{kind.__qualname__} {getattr(value, '__module__', '')} {reduced}", ()
    made_by, given, *rest = reduced
    rest = [[*part] if isinstance(part, Iterator) else part for part in rest]
    return "instance", [made_by, given, *rest]


def _is_foreign(module: str) -> bool:
    """Whether a module is one of this program, of Python, or of an installed package."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) or ""
    if not file:  # built in, or of a notebook
        return module.partition(".")[0] in sys.stdlib_module_names
    return is_ours(file) or is_installed(file)


def _is_known(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0].lstrip("_") in _KNOWN or is_ours(file)
