"""Downloads of data, and the one message for data that cannot be read or downloaded."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from urllib.request import urlopen

from fedtide.base.errors import SettingsError
from fedtide.base.files import replacing

TIMEOUT = 60.0  # seconds without a byte
_BLOCK_BYTES = 1 << 20


def download(url: str, path: Path, sha256: str) -> None:
    """Download a file unless it exists; a failed download leaves nothing behind."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")  # others may download it, too
    with urlopen(url) as response, replacing(path, part):
        size = int(response.headers.get("Content-Length") or 0)
        print(f"downloading {url}{f' ({size / 1e6:,.1f} MB)' if size else ''}", file=sys.stderr)
        digest = hashlib.sha256()
        with part.open("wb") as file:
            while block := response.read(_BLOCK_BYTES):
                file.write(block)
                digest.update(block)
            count = file.tell()
        if count < size:
            raise ValueError(f"the connection broke after {count:,} of {size:,} bytes of {url}")
        if digest.hexdigest() != sha256:
            raise ValueError(f"{url} is another file than expected: its SHA-256 is {digest.hexdigest()}")


@contextmanager
def obtaining(part: str, what: str, folder: str | Path, by_hand: str) -> Iterator[None]:
    """Report in one line of a ValueError whatever goes wrong while data are read or downloaded.

    It says which part, such as `task mnist`, reads what from which folder, and how to obtain the data
    otherwise. Standard output is reserved for the run's results: what libraries print there goes to standard
    error.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # the libraries that read damaged files document no exceptions
        raise SettingsError(
            f"{part}: cannot read the {what} from '{folder}' or download them into it "
            f"({reason_of(error)}); {by_hand}, or set --data-dir to the folder that has them"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def reason_of(error: Exception) -> str:
    """Return the first line of what an exception says."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).partition("\n")[0][:200].rstrip(":") or type(error).__name__
