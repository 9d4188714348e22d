"""Files: reading those of others without waiting and in bounded memory, writing ours so that they last.

A folder, a pipe or a device is no file.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import stat
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_MOST_LEVELS = 50
_MOST_DOTS = 1_000  # in a line of TOML
_TOO_DEEP = f"it is nested deeper than {_MOST_LEVELS} levels"


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, without waiting for anything.

    Raises
    ------
    OSError
        The file cannot be opened, or is no regular file; `strerror` says why.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL in the name
        raise OSError(0, str(error), str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        reason = "Is a directory" if stat.S_ISDIR(mode) else "It is a pipe or a device, not a file"
        raise OSError(errno.EINVAL, reason, str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most this many bytes.

    Raises
    ------
    OSError
        As `open_regular`, or the file is larger.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(0, f"it is larger than {most / 2**20:,.0f} MiB", str(path))
    return content


def read_text(path: str | Path, most: int) -> str:
    """Read a regular file of UTF-8, with or without a byte order mark; see `read_bytes`.

    Raises
    ------
    OSError
        As `read_bytes`.
    ValueError
        The file is not UTF-8.
    """
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 text") from None


def read_arrays(path: str | Path) -> list[NDArray[Any]]:
    """Read the arrays of an .npz file that is not compressed, in its order: they are no larger than the file.

    Raises
    ------
    OSError
        As `open_regular`.
    ValueError
        The file is something else.
    """
    return list(_arrays(path, None).values())


def read_named_arrays(path: str | Path, most: int) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, compressed or not, of at most so many bytes in all.

    Raises
    ------
    OSError
        As `open_regular`.
    ValueError
        The file is something else, or larger.
    """
    return _arrays(path, most)


def _arrays(path: str | Path, most: int | None) -> dict[str, NDArray[Any]]:
    """Read an .npz file; `most`: bytes of its arrays, or None where it may not be compressed."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if most is None and any(m.compress_type != zipfile.ZIP_STORED for m in members):
                    raise ValueError("it is compressed")
                if most is not None and sum(member.file_size for member in members) > most:
                    raise ValueError(f"its arrays are larger than {most / 2**20:,.0f} MiB")
            file.seek(0)
            with np.load(file) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (zipfile.BadZipFile, EOFError, LookupError, MemoryError, RecursionError, SyntaxError) as error:
            raise ValueError(str(error) or type(error).__name__) from None
        except (NotImplementedError, RuntimeError, TypeError, zlib.error) as error:  # encrypted, for example
            raise ValueError(str(error)) from None


def read_rows(path: str | Path) -> Iterator[list[str]]:
    """Read a CSV file row by row, the names in its first line first; values are stripped.

    Raises
    ------
    OSError
        As `open_regular`.
    ValueError
        The file is something else, names a column twice, or a row has more or fewer values than there are
        columns; the message names the line.
    """
    with open_regular(path) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        names: list[str] = []
        try:
            for line, row in enumerate(csv.reader(text, strict=True), start=1):
                row = [value.strip() for value in row]
                if line == 1:
                    names = row
                    if twice := [name for name, count in Counter(names).items() if count > 1]:
                        raise ValueError(f"line 1: two columns are named {twice[0][:40]!r}")
                elif len(row) != len(names):
                    raise ValueError(f"line {line}: {len(row)} values for {len(names)} columns")
                yield row
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(str(error)) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically: yields a temporary path, which is renamed at the end."""
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)  # in a folder of somebody else's it may be a link that leads elsewhere
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_durably(path: Path, data: bytes, temporary: Path) -> None:
    """Write or replace a file: after a power cut it is the new one or the old one, whole.

    Parameters
    ----------
    path
        The file.
    data
        Its content.
    temporary
        A name in the same folder, which it has until it is written.

    Raises
    ------
    OSError
        It cannot be written; then nothing has changed.
    """
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # data before the name, or a power cut could leave an empty file
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def parse_json(text: str) -> Any:
    """Parse JSON; `NaN` and `Infinity` are accepted, and an integer of 20 digits is a float.

    Raises
    ------
    ValueError
        The text is something else, or nested deeper than 50 levels.
    """
    try:
        return _shallow(
            json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises
    ------
    ValueError
        The text is something else, or nested deeper than 50 levels.
    """
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise ValueError(_TOO_DEEP)  # Python's parser crashes on a key of 100,000 parts
    try:
        table: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return table


def _shallow(value: Any) -> Any:
    """Return a parsed value; raise ValueError if it is nested too deeply for recursive functions."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)
