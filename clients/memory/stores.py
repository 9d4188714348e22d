"""Where a Flower client keeps its memory between two messages: in Flower's Context, or in a file.

Flower keeps a Context only as long as the node's process lives. A device that is to go on after a restart
gives a folder, `state-dir`, in its node config. Neither store pickles.
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
        """What was saved last; None if there is nothing, or nothing that can be read."""

    def save(self, memory: Memory) -> None:
        """Keep a memory; when this returns, it is what `load` returns."""


class ContextStore:
    """Keeps the memory in Flower's Context: as long as the simulation runs, or the device's SuperNode.

    Parameters
    ----------
    context
        Of the client.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def load(self) -> Memory | None:
        """Return what was saved last."""
        if RECORD not in self.context.state:
            return None
        record = self.context.state.array_records[RECORD]
        return unpack({name: array.numpy() for name, array in record.items()})

    def save(self, memory: Memory) -> None:
        """Keep a memory."""
        record = ArrayRecord()
        for name, array in pack(memory).items():
            record[name] = Array(array)
        self.context.state[RECORD] = record


class FileStore:
    """Keeps the memory in a file, which is replaced whole: after a power cut it is the new one or the old.

    Parameters
    ----------
    folder
        The node's `state-dir`, made if it is missing.
    run_id, client
        Whose memory it is; every run begins without one.
    """

    def __init__(self, folder: str | Path, run_id: int, client: int) -> None:
        self.path = Path(folder) / f"run-{run_id}-client-{client}.npz"

    def load(self) -> Memory | None:
        """Return what was saved last; a file that cannot be read counts as none, with a warning."""
        try:
            with np.load(self.path) as file:
                return unpack(dict(file))
        except FileNotFoundError:
            return None
        except Exception as error:  # a torn or foreign file makes zipfile and NumPy raise anything
            reason = f"{type(error).__name__}: {error}"
            log.warning("%s is no client memory (%s); the client goes on without one", self.path, reason)
            return None

    def save(self, memory: Memory) -> None:
        """Keep a memory.

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
                os.fsync(file.fileno())  # the data before the name, or a power cut could leave an empty file
            os.replace(temporary, self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def pack(memory: Memory) -> dict[str, NDArray[Any]]:
    """Lay a memory out as arrays: the vectors, numbered, and a header with their names and the tags.

    Names are not used as those of files in an archive, where not every name is possible.
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
    """Read what `pack` wrote.

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
