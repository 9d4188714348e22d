"""The folder of a run's checkpoints: the last two, each of them whole or told to be damaged."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flexfl.engine.checkpoints.row_file import FreeSpace, RowFile, RowIndex, unchanged
from flexfl.engine.checkpoints.state_file import pack, unpack
from flexfl.ground.files import write_durably
from strategies.core.state import Rows, StateDict

KEPT = 2
NAME = re.compile(r"round-(\d{8,18})-([0-9a-f]{32})\.safetensors")
TEMPORARY = ".writing"


class Found(NamedTuple):
    """A checkpoint that was read.

    Attributes
    ----------
    round
        After which it was made.
    state
        What was saved.
    damaged
        Why newer ones were of no use.
    """

    round: int
    state: StateDict
    damaged: list[str]


class CheckpointFolder:
    """Saves states after rounds, and finds the newest that is whole; it is created when it is needed.

    A state is one file, named by the round and a checksum of its content; vectors that change from time to
    time only (`Rows`) lie in `rows.bin`. Both are on the disk before the state gets its name.

    Parameters
    ----------
    path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: list[dict[str, RowIndex]] = []  # of the checkpoints on the disk, the newest last

    def save(self, server_round: int, state: StateDict) -> None:
        """Save a state; afterwards only the last two are kept.

        Raises
        ------
        OSError
            It cannot be written; the checkpoints before it stay whole.
        ValueError, TypeError
            It contains what cannot be saved.
        """
        before = self._kept[-1] if self._kept else {}
        space = FreeSpace(index for kept in self._kept for index in kept.values())
        indexes = {
            name: self._rows.write(part, before.get(name), space)
            for name, part in state.items()
            if isinstance(part, Rows)
        }
        self._rows.sync()
        data = pack({k: part for k, part in state.items() if not isinstance(part, Rows)}, indexes)
        name = f"round-{server_round:08d}-{_checksum(data)}.safetensors"
        write_durably(self.path / name, data, self.path / TEMPORARY)
        sync_folder(self.path)
        self._kept = [*self._kept, indexes][-KEPT:]
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)

    def to_write(self, state: StateDict) -> int:
        """Return about how many bytes `save` would write: what has changed since the last checkpoint."""
        before = self._kept[-1] if self._kept else {}
        total = 0
        for name, part in state.items():
            if isinstance(part, Rows):
                changed = np.flatnonzero(unchanged(before.get(name), part) < 0)
                total += len(changed) * part.vectors[int(changed[0])].nbytes if len(changed) else 0
            elif isinstance(part, np.ndarray):
                total += part.nbytes
        return total

    def load(self, check: Callable[[StateDict], None] = lambda state: None) -> Found | None:
        """Return the newest checkpoint that is whole; None if there is none.

        Those that are damaged are removed, and so are older ones: what is saved next goes on from this one.

        Parameters
        ----------
        check
            Raises ValueError for a state that is of no use.

        Raises
        ------
        ValueError
            There are checkpoints, but none is whole.
        """
        damaged: list[str] = []
        files = self._files()[::-1]
        for position, path in enumerate(files):
            server_round = int(path.name.split("-")[1])
            try:
                data = path.read_bytes()
                if not path.name.endswith(f"{_checksum(data)}.safetensors"):
                    raise ValueError("it is not complete, or was changed")
                state, indexes = unpack(data)
                state |= {name: self._rows.read(index) for name, index in indexes.items()}
                check(state)
            except (OSError, ValueError) as reason:
                damaged.append(f"the checkpoint of round {server_round} is damaged: {reason}")
                continue
            for other in [*files[:position], *files[position + 1 :], self.path / TEMPORARY]:
                other.unlink(missing_ok=True)
            self._kept = [indexes]
            return Found(server_round, state, damaged)
        if damaged:
            raise ValueError(f"{self.path}: {'; '.join(damaged)}")
        return None

    def close(self) -> None:
        """Close the files."""
        if "_rows" in vars(self):
            self._rows.close()

    @cached_property
    def _rows(self) -> RowFile:
        self.path.mkdir(exist_ok=True)
        return RowFile(self.path / "rows.bin")

    def _files(self) -> list[Path]:
        """Return the checkpoints, the oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(path for path in self.path.iterdir() if NAME.fullmatch(path.name))


def sync_folder(path: Path) -> None:
    """Have the names of the files in a folder on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
