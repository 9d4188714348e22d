"""Where a Flower client stores its memory between two messages: in Flower's Context, or in a file.

Flower keeps a Context only as long as the node's process runs. A device that is to keep its memory over a
restart names a folder, `state-dir`, in its node config. Neither store uses pickle.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

from clients.memory.handshake import ClientState, Memory

RECORD = "flexfl.memory"
FORMAT = "flexfl client memory 1"

log = logging.getLogger(__name__)


class Store(Protocol):
    """Keeps the memory of one client in one run."""

    def load(self) -> Memory | None:
        """Return the memory that was saved last; None if there is none, or none that can be read."""

    def save(self, memory: Memory) -> None:
        """Store a memory; once this returns, `load` returns it."""


class ContextStore:
    """Keeps the memory in Flower's Context, for as long as the simulation or the device's SuperNode runs.

    Parameters
    ----------
    context
        The client's.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def load(self) -> Memory | None:
        """See `Store.load`."""
        if RECORD not in self.context.state:
            return None
        record = self.context.state.array_records[RECORD]
        return unpack({name: array.numpy() for name, array in record.items()})

    def save(self, memory: Memory) -> None:
        """See `Store.save`."""
        record = ArrayRecord()
        for name, array in pack(memory).items():
            record[name] = Array(array)
        self.context.state[RECORD] = record


class FileStore:
    """Keeps the memory in a file, which is replaced atomically: a power cut leaves the new one or the old.

    Parameters
    ----------
    folder
        The node's `state-dir`, created if it is missing.
    run_id, client
        Whose memory it is; every run starts without one.
    """

    def __init__(self, folder: str | Path, run_id: int, client: int) -> None:
        self.path = Path(folder) / f"run-{run_id}-client-{client}.npz"

    def load(self) -> Memory | None:
        """See `Store.load`; a file that cannot be read counts as none, with a warning."""
        try:
            with np.load(self.path) as file:
                return unpack(dict(file))
        except FileNotFoundError:
            return None
        except Exception as error:  # zipfile and NumPy raise all kinds for a damaged or foreign file
            reason = f"{type(error).__name__}: {error}"
            log.warning("%s is no client memory (%s); the client continues without one", self.path, reason)
            return None

    def save(self, memory: Memory) -> None:
        """See `Store.save`.

        Raises
        ------
        OSError
            The folder cannot be written to, or is full.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                np.savez(file, **pack(memory))  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())  # data before the name, or a power cut could leave an empty file
            os.replace(temporary, self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def pack(memory: Memory) -> dict[str, NDArray[Any]]:
    """Return a memory as arrays: the numbered vectors, and a header with their names and the tags.

    The vectors' names are not used as file names in the archive, where some characters are impossible.
    """
    header = {
        "format": FORMAT,
        "tag": memory.tag,
        "pending-tag": memory.pending_tag,
        "committed": list(memory.committed),
        "pending": None if memory.pending is None else list(memory.pending),
    }
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for version, state in (("committed", memory.committed), ("pending", memory.pending or {})):
        arrays |= {f"{version}-{i}": np.asarray(value) for i, value in enumerate(state.values())}
    return arrays


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Memory:
    """Return the memory that `pack` was given.

    Raises
    ------
    ValueError, KeyError, TypeError
        The arrays are something else.
    """
    header = json.loads(bytes(arrays["header"]))
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r} where {FORMAT!r} is expected")

    def state(version: str) -> ClientState:
        return {name: arrays[f"{version}-{i}"] for i, name in enumerate(header[version])}

    pending = None if header["pending"] is None else state("pending")
    return Memory(state("committed"), int(header["tag"]), pending, int(header["pending-tag"]))
