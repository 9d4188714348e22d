"""Whole files of data: JSON, and pickles of plain data, in which nothing is executed."""

import math
import os
from itertools import chain
from typing import Any

from fedtide.base.errors import SettingsError
from fedtide.base.files import parse_json
from traces.files.lines import open_data
from traces.files.pickles import PlainPickle

_MAX_BYTES = 512 * 2**20  # a file usually takes about ten times its size in memory
_MAX_DEPTH = 20
_CONTAINERS = {dict, list, tuple}
_PLAIN = {*_CONTAINERS, str, int, float, bool, type(None)}


def read_document(reader: str, path: str) -> Any:
    """Read a JSON file or a pickle of plain data, whichever the content is; `reader` is for messages.

    Plain data are dicts, lists, tuples, strings, numbers, True, False and None, nested at most 20 levels
    deep; in a pickle, no container occurs twice. Anything else, and a file larger than 512 MiB, is a
    ValueError that names the file.
    """
    place = f"{reader}: {path}"
    with open_data(reader, path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise SettingsError(f"{place}: larger than {_MAX_BYTES // 2**20} MiB, split it into parts")
        content = file.read(_MAX_BYTES)
    is_json = content.lstrip()[:1] in (b"{", b"[") or content.startswith(b"\xef\xbb\xbf")
    try:
        value = parse_json(content.decode("utf-8-sig")) if is_json else PlainPickle(content).value()
    except Exception as error:  # a damaged pickle can raise anything
        raise SettingsError(
            f"{place}: neither JSON nor a pickle of plain data ({str(error)!r:.100})"
        ) from None
    _check_plain(place, value)
    return value


def _check_plain(place: str, value: Any) -> None:
    """Raise ValueError unless a value is plain data, nested at most 20 levels."""
    level = [[value]]
    for _ in range(_MAX_DEPTH + 2):
        kinds = set(map(type, chain.from_iterable(level)))
        if not kinds <= _PLAIN:
            names = ", ".join(sorted(kind.__name__.strip("_").lower() for kind in kinds - _PLAIN))
            raise SettingsError(f"{place}: contains {names}; only plain data can be read")
        inner = [item for item in chain.from_iterable(level) if type(item) in _CONTAINERS]
        if not inner:
            return
        level = [[*item.values(), *item] if type(item) is dict else item for item in inner]
    raise SettingsError(f"{place}: nested deeper than {_MAX_DEPTH} levels")


def number(place: str, name: str, value: Any) -> float:
    """Return a value of a document that must be a finite number; otherwise raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise SettingsError(f"{place}: {name} is {str(value)[:40]!r}, give a number")
    if math.isnan(value):
        raise SettingsError(f"{place}: {name} is NaN, give a number")
    return float(value)
