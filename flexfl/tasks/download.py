"""Downloads of data sets: streamed, bounded, and kept only if the checksum is right."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte


def download(url: str, path: Path, size: int, checksum: str) -> None:
    """Download a file, unless it is there.

    Parameters
    ----------
    url : str
        Where it is.
    path : Path
        Where to put it; its folder is made. Nothing is left there of a download that fails.
    size : int
        Its bytes.
    checksum : str
        Algorithm and digest, such as ``sha256:9f86...``.

    Raises
    ------
    OSError
        It cannot be downloaded, or is another file than the one expected.
    """
    if path.exists():
        return
    algorithm, _, digest = checksum.partition(":")
    found, received = hashlib.new(algorithm), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        print(f"downloading {url}", file=sys.stderr)
        with os.fdopen(descriptor, "wb") as file, urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            while chunk := response.read(CHUNK):
                received += len(chunk)
                if received > size:
                    break
                found.update(chunk)
                file.write(chunk)
        if received != size or found.hexdigest() != digest:
            raise OSError(f"{url} is not the file that it was: its size or its checksum is another one")
        Path(part).replace(path)
    except (HTTPException, ValueError) as error:
        raise OSError(f"{url}: {error}") from None
    finally:
        Path(part).unlink(missing_ok=True)
