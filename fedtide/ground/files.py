"""Files: reading those of others in bounded memory, writing ours so that they last."""

from __future__ import annotations

import errno
import json
import os
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; OSError, with `strerror`, for a folder, a pipe or a device."""
    if os.path.exists(path) and not os.path.isfile(path):
        reason = "Is a directory" if os.path.isdir(path) else "It is a pipe or a device, not a file"
        raise OSError(errno.EINVAL, reason, str(path))
    return open(path, "rb")


def read_bytes(path: str | Path, most: int) -> bytes:
    """Read a regular file; OSError if that is impossible, or it is larger than so many bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(0, f"it is larger than {most / 2**20:,.0f} MiB", str(path))
    return content


def read_text(path: str | Path, most: int) -> str:
    """Read a regular file of UTF-8, with or without a byte order mark; ValueError if it is something else."""
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 text") from None


def read_arrays(path: str | Path, most: int | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file by name, of at most so many bytes.

    By default it must not be compressed: its arrays are no larger than the file. OSError or ValueError is
    raised if it cannot be read, or is something else.
    """
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
        except OSError:
            raise
        except Exception as error:  # a damaged file can raise anything
            raise ValueError(str(error) or type(error).__name__) from None


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Write a file atomically: yields a temporary path in the same folder, which is renamed at the end."""
    temporary = temporary or path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)  # in a folder of somebody else's it may be a link that leads elsewhere
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_durably(path: Path, data: bytes, temporary: Path) -> None:
    """Write or replace a file: after a power cut, or an OSError, it is the new one or the old one, whole."""
    with replacing(path, temporary), temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # data before the name, or a power cut could leave an empty file


def parse_json(text: str) -> Any:
    """Parse JSON, or raise ValueError; NaN is accepted, and an integer of 20 digits is a float."""
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, or raise ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
