"""Whole files of data: JSON, and pickles of plain data, parsed without executing anything in them."""

import json
import math
import os
import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

from traces.files.lines import open_data, parse_int

_MAX_BYTES = 512 * 2**20  # a parsed file takes about ten times its size in memory
_MAX_DEPTH = 20
_MAX_CONTAINERS = 5_000_000  # an empty list takes 64 bytes of memory, and one or two of the file
_MAX_OPERATIONS = 100_000_000  # of a pickle, about a million a second

_MARK = object()
_NUMBERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_STRINGS = {
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
}


def read_document(reader: str, path: str) -> Any:
    """Read a JSON file or a pickle of plain data, whichever the content is.

    Parameters
    ----------
    reader : str
        Name of the reader for messages, such as ``trace table``.
    path : str
        The file.

    Returns
    -------
    object
        Dicts, lists, strings, numbers, True, False and None.

    Raises
    ------
    ValueError
        If the file cannot be read, is larger than 512 MiB, is neither JSON nor such a pickle, has more than
        5 million lists and dicts, or is nested deeper than 20 levels; the message names the file and the line
        or byte.
    """
    place = f"{reader}: {path}"
    with open_data(reader, path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise ValueError(f"{place}: larger than {_MAX_BYTES // 2**20} MiB, split it into parts")
        content = file.read(_MAX_BYTES)
    is_json = content.lstrip()[:1] in (b"{", b"[") or content.startswith(b"\xef\xbb\xbf")
    value = _json(place, content) if is_json else plain_pickle(place, content)
    _check_depth(place, value)
    return value


def _json(place: str, content: bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{place}: {name} is not a finite number")

    if content.count(b"[") + content.count(b"{") > _MAX_CONTAINERS:
        raise ValueError(f"{place}: more than {_MAX_CONTAINERS:,} lists and objects, split it into parts")
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=refuse, parse_int=parse_int)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{place}, line {line}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}, line {error.lineno}: invalid JSON at character {error.colno}") from None
    except RecursionError:
        raise ValueError(f"{place}: nested deeper than {_MAX_DEPTH} levels") from None


def plain_pickle(place: str, content: bytes) -> Any:
    """Parse a pickle that contains only dicts, lists, tuples (as lists), strings, numbers and constants.

    The operations of the pickle are interpreted here, one by one. Those that import, create or call any other
    object are not implemented, so that nothing in the file is executed. Strings may occur several times,
    containers only once: a small file cannot describe something huge or cyclic.

    Parameters
    ----------
    place : str
        Name of the file, for messages.
    content : bytes
        The pickle, of any protocol.

    Raises
    ------
    ValueError
        If it is not such a pickle; the message gives the byte.
    """
    machine = _Machine()
    operations = machine.operations
    position = 0
    try:
        for count, (operation, argument, at) in enumerate(pickletools.genops(content)):
            position = at or 0
            if operation.name == "STOP":
                (value,) = machine.stack
                return value
            if operation.name not in operations:
                raise _RefusedError(f"contains the operation {operation.name}")
            if count == _MAX_OPERATIONS:
                raise _RefusedError(f"contains more than {_MAX_OPERATIONS:,} values")
            operations[operation.name](argument)
    except _RefusedError as error:
        raise ValueError(f"{place}, byte {position}: {error}, only plain data can be read") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError):
        raise ValueError(f"{place}: neither JSON nor a pickle of plain data (byte {position})") from None
    raise ValueError(f"{place}: the pickle is incomplete")


class _RefusedError(Exception):
    """The pickle contains something other than plain data, or too much of it."""


class _Machine:
    """The stack and the memo of a pickle, and the operations on them, by the name of `pickletools`."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0
        push = self.stack.append
        self.operations: dict[str, Callable[[Any], object]] = {
            **dict.fromkeys(_NUMBERS, self._number),
            **dict.fromkeys(_STRINGS, push),
            "NONE": lambda _: push(None),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            "MARK": lambda _: push(_MARK),
            "EMPTY_DICT": lambda _: self._push_new({}),
            "EMPTY_LIST": lambda _: self._push_new([]),
            "EMPTY_TUPLE": lambda _: self._push_new([]),
            "LIST": lambda _: self._push_new(self._since_mark()),
            "TUPLE": lambda _: self._push_new(self._since_mark()),
            "TUPLE1": lambda _: self._push_new(self._last(1)),
            "TUPLE2": lambda _: self._push_new(self._last(2)),
            "TUPLE3": lambda _: self._push_new(self._last(3)),
            "DICT": lambda _: self._push_new(_pairs({}, self._since_mark())),
            "APPEND": lambda _: self._extend(self._last(1)),
            "APPENDS": lambda _: self._extend(self._since_mark()),
            "SETITEM": lambda _: self._set(self._last(2)),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._put),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), self._get),
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
        }

    def _number(self, value: int | float) -> None:
        if isinstance(value, int) and value.bit_length() > 64:
            raise _RefusedError("contains a number of more than 64 bits")
        self.stack.append(value)

    def _push_new(self, container: list[Any] | dict[Any, Any]) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            raise _RefusedError(f"contains more than {_MAX_CONTAINERS:,} lists and dicts")
        self.stack.append(container)

    def _last(self, count: int) -> list[Any]:
        """Remove the last items from the stack; return them."""
        if len(self.stack) < count:
            raise ValueError
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _since_mark(self) -> list[Any]:
        """Remove the last mark and everything above it from the stack; return the items."""
        mark = len(self.stack) - 1
        while self.stack[mark] is not _MARK:
            mark -= 1
            if mark < 0:
                raise ValueError
        items = self.stack[mark + 1 :]
        del self.stack[mark:]
        return items

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        _pairs(self.stack[-1], items)

    def _put(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        if isinstance(self._memo[index], list | dict):
            raise _RefusedError("contains a list or dict in several places")
        self.stack.append(self._memo[index])


def _pairs(value: Any, items: list[Any]) -> dict[Any, Any]:
    if not isinstance(value, dict) or len(items) % 2:
        raise TypeError
    value.update(zip(items[::2], items[1::2], strict=True))
    return value


def _check_depth(place: str, value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for container in level
            if isinstance(container, list | dict)
            for item in (container if isinstance(container, list) else container.values())
            if isinstance(item, list | dict)
        ]
        if not level:
            return
    raise ValueError(f"{place}: nested deeper than {_MAX_DEPTH} levels")


def number(place: str, name: str, value: Any) -> float:
    """Return a value of a document that must be a finite number; otherwise raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise ValueError(f"{place}: {name} is {str(value)[:40]!r}, give a number")
    if math.isnan(value):
        raise ValueError(f"{place}: {name} is NaN, give a number")
    return float(value)
