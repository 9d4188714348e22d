"""Opening files that somebody else may have written: a folder, a pipe or a device is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


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
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
