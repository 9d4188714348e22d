"""Downloads of data sets, and the one message for data that cannot be read or downloaded."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from fedtide.base.errors import SettingsError

TIMEOUT = 60.0  # seconds without a byte


def download(url: str, path: Path, sha256: str) -> None:
    """Download a file unless it exists; a failed download leaves nothing behind."""
    if path.exists():
        return
    from torch.hub import download_url_to_file

    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"downloading {url}", file=sys.stderr)
    download_url_to_file(url, str(path), hash_prefix=sha256, progress=sys.stderr.isatty())


@contextmanager
def obtaining(task: str, what: str, folder: str | Path, by_hand: str) -> Iterator[None]:
    """Report in one line of a ValueError whatever goes wrong while data are read or downloaded.

    It says which task reads what from which folder, and how to obtain the data otherwise. Standard output is
    reserved for the run's results: what libraries print there goes to standard error.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # the libraries that read damaged files document no exceptions
        raise SettingsError(
            f"task {task}: cannot read the {what} from '{folder}' or download them into it "
            f"({reason_of(error)}); {by_hand}, or set --data-dir to the folder that has them"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def reason_of(error: Exception) -> str:
    """Return the first line of what an exception says."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).partition("\n")[0][:200].rstrip(":") or type(error).__name__
