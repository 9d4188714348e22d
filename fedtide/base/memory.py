"""How much memory this process may use, how much of it the replies of a round may take, and what it keeps."""

from __future__ import annotations

import ctypes
import math
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from fedtide.base.errors import SettingsError

CGROUPS = "/sys/fs/cgroup"
REPLIES_SHARE = 1 / 8  # of the memory: replies of a round that take more lie in a file

# The parameters of glibc's mallopt, and their values here: bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = (1 << 31) - 1  # free memory at the end of the heap: the maximum that mallopt accepts
_LARGEST = 1 << 29  # larger blocks, such as tables of all clients, are returned when they are freed
_CHOSEN = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def total_memory() -> float:
    """Return the bytes of memory that this process may use; infinity where the system does not say."""
    limits = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min([*limits, *_container_limits()])


def held_memory() -> int:
    """Return the bytes of memory that this process holds; 0 where the system does not say: not on Linux."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def check_room(what: str, needed: float, advice: str) -> None:
    """Raise SettingsError, with advice, if what a message names needs more bytes than there are here."""
    if needed > (there := total_memory()):
        of = f"that needs {gigabytes(needed)}, but this machine has {gigabytes(there)}"
        raise SettingsError(f"{what}: {of}; {advice}")


def gigabytes(size: float) -> str:
    """Write a number of bytes for a message."""
    return f"{size / 2**30:,.1f} GB"


@cache
def replies_limit() -> float:
    """Return the bytes that the replies of a round may take in RAM."""
    return REPLIES_SHARE * total_memory()


def keep_freed_memory() -> bool:
    """Have this process keep the memory that it frees, for what it allocates next.

    glibc returns large blocks to the system, which hands out zeroed pages again one page fault at a time. A
    round frees and allocates as much as models, updates and activations take: with ResNet-18, 11 million
    weights, the faults take three quarters of the server's step and 7 % of the training.

    Returns whether the C library does so from now on: it is glibc, and the user has not set its parameters in
    the environment.
    """
    if any(name in os.environ for name in _CHOSEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))


def _container_limits(cgroups: str = CGROUPS, own: str = "/proc/self/cgroup") -> list[int]:
    """Return the limits of the cgroups that this process is in, of version 1 and 2, and of those above them.

    A container usually sees its own cgroup as the root, whatever path /proc names.
    """
    found = []
    with suppress(OSError):
        for line in Path(own).read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, file = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
            at = Path(path.lstrip("/"))
            for above in (at, *at.parents):
                with suppress(OSError, ValueError):  # `max` where there is no limit
                    found.append(int(Path(cgroups, root, above, file).read_text(encoding="ascii")))
    return found
