"""Where a Flower client stores its memory between two messages: in Flower's Context, or in a file.

Flower keeps a Context only as long as the node's process runs. A device that is to keep its memory over a
restart names a folder, `state-dir`, in its node config.

A memory is stored in the safetensors format, which holds the arrays as they are, uncompressed, so that
reading them takes no more memory than they do; nothing is unpickled. The metadata hold the names and tags,
and a checksum: bytes that are torn or changed are refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import safetensors
import safetensors.numpy
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from clients.memory.handshake import ClientState, Memory
from fedtide.base.errors import why
from fedtide.base.files import open_regular, write_durably

RECORD = "fedtide.memory"
KEPT_RUNS = 4  # files of other runs that are kept for each client, if they are newer than
KEPT_SECONDS = 30 * 24 * 3600.0
FORMAT = "fedtide client memory 2"
_HEADER, _CHECKSUM = "memory", "sha256"  # keys of the metadata

log = logging.getLogger(__name__)


class Store(Protocol):
    """Keeps the memory of one client in one run."""

    def load(self) -> Memory | None:
        """Return the memory that was saved last; None if there is none, or if it cannot be read."""

    def save(self, memory: Memory) -> None:
        """Store a memory; once this returns, `load` returns it."""


class ContextStore:
    """Keeps the memory in Flower's Context, for as long as the simulation or the device's SuperNode runs."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def load(self) -> Memory | None:
        if RECORD not in self.context.state:
            return None
        return from_bytes(cast(bytes, self.context.state.config_records[RECORD]["bytes"]))

    def save(self, memory: Memory) -> None:
        self.context.state[RECORD] = ConfigRecord({"bytes": to_bytes(memory)})


class FileStore:
    """Keeps the memory in a file, which is replaced atomically: a power cut leaves the new one or the old.

    The folder is the node's `state-dir`, created if it is missing. Other runs' files of the same client are
    removed when a run's first one is written, but the newest few. One that cannot be read is renamed to
    `<name>.bad`, with a warning; an OSError says that the folder cannot be written to, or is full.
    """

    def __init__(self, folder: str | Path, run_id: int | str, client: int) -> None:
        self.client = client
        self.path = Path(folder) / f"run-{run_id}-client-{client}.safetensors"

    def load(self) -> Memory | None:
        try:
            with open_regular(self.path) as file:
                return from_bytes(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, MemoryError) as error:
            self._set_aside(why(error))
            return None

    def save(self, memory: Memory) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")  # always the same: one at most is left over
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self._remove_old()
            write_durably(self.path, to_bytes(memory), temporary)
        except OSError as error:
            reason = f"{why(error)}; it must be a folder with free space that can be written to"
            raise OSError(f"{self.path.parent} (state-dir): {reason}") from error

    def _set_aside(self, reason: str) -> None:
        bad = self.path.with_name(f"{self.path.name}.bad")
        try:
            os.replace(self.path, bad)
            what = f"is now {bad.name}"
        except OSError as error:
            what = f"stays ({why(error)})"
        text = "%s is not a client memory (%s) and %s; the client continues without one"
        log.warning(text, self.path, reason, what)

    def _remove_old(self) -> None:
        """Remove what other runs have left of this client, but the newest few."""
        written: dict[Path, float] = {}
        for pattern in ("run-*-client-{}.*", ".run-*-client-{}.*"):
            for path in self.path.parent.glob(pattern.format(self.client)):
                with suppress(OSError):
                    written[path] = path.lstat().st_mtime
        others = [path for path in written if self.path.name not in path.name]
        oldest = time.time() - KEPT_SECONDS
        for i, path in enumerate(sorted(others, key=written.__getitem__, reverse=True)):
            if i >= KEPT_RUNS or written[path] < oldest:
                with suppress(OSError):  # one that cannot be removed does no harm
                    path.unlink()


def to_bytes(memory: Memory) -> bytes:
    """Return a memory as bytes; its vectors are numbered, as they may have any names."""
    states = {"committed": memory.committed, "pending": memory.pending}
    names = {version: None if state is None else list(state) for version, state in states.items()}
    header = json.dumps({"format": FORMAT, "tag": memory.tag, "pending-tag": memory.pending_tag, **names})
    arrays = {
        f"{version}-{i}": _plain(np.asarray(value))
        for version, state in states.items()
        for i, value in enumerate((state or {}).values())
    }
    return safetensors.numpy.save(arrays, {_HEADER: header, _CHECKSUM: _checksum(header, arrays)})


def from_bytes(data: bytes) -> Memory:
    """Return the memory that `to_bytes` was given; a ValueError says why the bytes are not one.

    The arrays may be read-only.
    """
    try:
        arrays = safetensors.numpy.load(data)
        size = int.from_bytes(data[:8], "little")  # as safetensors begins, and `load` has checked
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        text, checksum = metadata[_HEADER], metadata[_CHECKSUM]
    except (safetensors.SafetensorError, LookupError) as error:
        raise ValueError(f"it is not in the format {FORMAT!r}: {error}") from None
    if checksum != _checksum(text, arrays):
        raise ValueError("its checksum is wrong")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r} where {FORMAT!r} is expected")

    def state(version: str) -> ClientState:
        return {name: arrays[f"{version}-{i}"] for i, name in enumerate(header[version])}

    pending = None if header["pending"] is None else state("pending")
    return Memory(state("committed"), header["tag"], pending, header["pending-tag"])


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in contiguous memory and this machine's byte order, as safetensors needs it."""
    return np.array(array, array.dtype.newbyteorder("="), order="C", copy=None)


def _checksum(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    content = hashlib.sha256(header.encode())
    for name, value in sorted(arrays.items()):
        content.update(f"\n{name} {value.dtype.name} {value.shape}\n".encode())
        content.update(value.tobytes())
    return content.hexdigest()
