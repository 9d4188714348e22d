"""What killed processes have left on this machine, recognised by locks, and removed.

A lock is released by the kernel when its process ends, however it ends. A process ID proves less: it may be
another process's by now, or one of another container that shares the folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CELL = "fedtide-cell-"  # folders in which a comparison runs
SESSION_LOCK = "fedtide.lock"  # a file in the folder of each session of Ray that we have started
ENDED = b"ended"  # its content after a normal end
_YOUNG = 60  # seconds that a process may take to lock what it has made


def lock(descriptor: int) -> bool:
    """Lock an open file or folder until this process ends or closes it; return whether that was possible."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows; a lock of another process; a file system without locks
        return False
    return True


@contextmanager
def locked_folder(prefix: str) -> Iterator[str]:
    """Make a temporary folder; it is removed in the end, or as a leftover if this process is killed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        lock(descriptor)
        try:
            yield folder
        finally:
            os.close(descriptor)


def lock_session(folder: Path) -> None:
    """Mark the folder of a Ray session as one of this process; Ray itself never removes any."""
    descriptor = os.open(folder / SESSION_LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    lock(descriptor)  # never closed, so that it is locked until this process ends


def end_session(folder: Path) -> None:
    """Note that a session has ended normally; its logs stay until Ray is started the next time."""
    with suppress(OSError):
        (folder / SESSION_LOCK).write_bytes(ENDED)


def remove_leftovers(sessions: Path | None = None) -> list[str]:
    """Remove what killed processes of this program have left; nothing that a living process uses.

    `sessions` is the folder of the sessions of Ray; without it, they stay. Returns what has been removed,
    with its size, for people; sessions that ended normally are not listed.
    """
    temporary = Path(tempfile.gettempdir())
    found = {"folders of a comparison": [_removed(path, path) for path in temporary.glob(f"{CELL}*")]}
    if sessions is not None:
        marks = [m for m in sessions.glob(f"session_*/{SESSION_LOCK}") if not m.parent.is_symlink()]
        found["session folders of Ray"] = [_removed(mark.parent, mark) for mark in marks]
    sizes = {what: [size for size in removed if size is not None] for what, removed in found.items()}
    return [f"{what}: {len(s)}, {sum(s) / 1e6:.1f} MB" for what, s in sizes.items() if s]


def _removed(path: Path, locked: Path) -> int | None:
    """Remove a folder unless a process holds the lock of `locked`.

    Returns its bytes; None if it stays, or was that of a session that ended normally.
    """
    with suppress(OSError):
        descriptor = os.open(locked, os.O_RDONLY)
        try:
            if time.time() - os.fstat(descriptor).st_mtime < _YOUNG or not lock(descriptor):
                return None
            ended = path != locked and os.read(descriptor, len(ENDED)) == ENDED
            size = None if ended else _size(path)
            shutil.rmtree(path)
            return size
        finally:
            os.close(descriptor)
    return None


def _size(path: Path) -> int:
    return sum(512 * file.lstat().st_blocks for file in (path, *path.rglob("*")))
