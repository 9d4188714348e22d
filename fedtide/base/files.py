"""Files: reading those of others in bounded memory, writing ours so that they last."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


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
    """Read the arrays of an .npz file by name; see `arrays_in`. OSError: it cannot be read."""
    with open_regular(path) as file:
        return arrays_in(file, most)


def arrays_in(file: BinaryIO, most: int | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an open .npz file by name, of at most so many bytes.

    By default they are not compressed, as this program writes them, and at most as large as the file. That is
    checked by the directory of the file and by the header of each array, before memory is allocated.
    ValueError: they are larger, or the file is something else.
    """
    try:
        methods = {zipfile.ZIP_STORED} if most is None else {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        limit = file.seek(0, os.SEEK_END) if most is None else most
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type not in methods for member in members):  # others inflate all at once
                raise ValueError(
                    f"it is compressed{'' if most is None else ' in another way than NumPy does'}"
                )
            if sum(member.file_size for member in members) > limit:
                size = "the file" if most is None else f"{most / 2**20:,.0f} MiB"
                raise ValueError(f"its arrays are larger than {size}")
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(str(error) or type(error).__name__) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array of an .npz file, which must be as large as its header says."""
    with archive.open(member) as stream:
        header = _HEADERS[np.lib.format.read_magic(stream)]
        shape, _, dtype = header(stream)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} is shorter than its header says")
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def check_replaceable(path: Path) -> None:
    """Raise OSError for a link, a pipe, a folder or a device, which a file would replace."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, "It is a link, a folder, a pipe or a device, not a file", str(path))


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Write a file atomically: yields a temporary path in the same folder, which is renamed at the end."""
    temporary = temporary or path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)  # in a folder of somebody else's it may be a link that leads elsewhere
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that a user knows
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Make a new folder atomically: yields another one in the same place, which is renamed at the end."""
    temporary = path.with_name(f".{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
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
