"""Whole files of data: JSON, and pickles of plain data, parsed without executing anything in them."""

import json
import math
import pickletools
from typing import Any, NoReturn

from traces.files.lines import open_data, parse_int

_MAX_BYTES = 512 * 2**20  # a parsed file takes about ten times its size in memory
_MAX_DEPTH = 20

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
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
_GET = {"GET", "BINGET", "LONG_BINGET"}


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
        If the file cannot be read, is larger than 512 MiB, is neither JSON nor such a pickle, or is nested
        deeper than 20 levels; the message names the file and the line or byte.
    """
    place = f"{reader}: {path}"
    with open_data(reader, path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{place}: larger than {_MAX_BYTES // 2**20} MiB, split it into parts")
    is_json = content.lstrip()[:1] in (b"{", b"[") or content.startswith(b"\xef\xbb\xbf")
    value = _json(place, content) if is_json else plain_pickle(place, content)
    _check_depth(place, value)
    return value


def _json(place: str, content: bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{place}: {name} is not a finite number")

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
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    position = 0
    try:
        for operation, argument, at in pickletools.genops(content):
            position = at or 0
            if operation.name == "STOP":
                (value,) = stack
                return value
            _step(operation.name, argument, stack, memo)
    except _RefusedError as error:
        raise ValueError(f"{place}, byte {position}: {error}, only plain data can be read") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError):
        raise ValueError(f"{place}: neither JSON nor a pickle of plain data (byte {position})") from None
    raise ValueError(f"{place}: the pickle is incomplete")


class _RefusedError(Exception):
    """The pickle contains something other than plain data."""


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Interpret one operation of a pickle."""
    if name in _NUMBERS or name in _STRINGS:
        if isinstance(argument, int) and argument.bit_length() > 64:
            raise _RefusedError("contains a number of more than 64 bits")
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in ("EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append([])
    elif name in ("LIST", "TUPLE"):
        stack.append(_since_mark(stack))
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        stack[-int(name[-1]) :] = [stack[-int(name[-1]) :]]
    elif name == "DICT":
        stack.append(_pairs({}, _since_mark(stack)))
    elif name == "APPEND":
        item = stack.pop()
        _as_list(stack[-1]).append(item)
    elif name == "APPENDS":
        items = _since_mark(stack)
        _as_list(stack[-1]).extend(items)
    elif name == "SETITEM":
        pair = [stack[-2], stack[-1]]
        del stack[-2:]
        _pairs(stack[-1], pair)
    elif name == "SETITEMS":
        items = _since_mark(stack)
        _pairs(stack[-1], items)
    elif name in _PUT or name == "MEMOIZE":
        memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
    elif name in _GET:
        if isinstance(memo[argument], list | dict):
            raise _RefusedError("contains a list or dict in several places")
        stack.append(memo[argument])
    elif name not in ("PROTO", "FRAME"):
        raise _RefusedError(f"contains the operation {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    """Remove the last mark and everything above it from the stack; return the items."""
    mark = len(stack) - 1
    while stack[mark] is not _MARK:
        mark -= 1
        if mark < 0:
            raise ValueError
    items = stack[mark + 1 :]
    del stack[mark:]
    return items


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


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
