"""Work on the parts of large arrays, on all cores: NumPy lets other threads run while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

_MOST = 8  # threads; more wait for the memory


def for_each(work: Callable[[int], None], parts: Sequence[int]) -> None:
    """Call `work` for each part, in any order, on several threads; it must write to its own part only."""
    threads = min(len(parts), num_threads())
    if threads < 2:
        return _stripe(work, parts)
    others = [_pool().submit(_stripe, work, parts[k::threads]) for k in range(1, threads)]
    try:
        _stripe(work, parts[::threads])
    finally:
        errors = [other.exception() for other in others]  # none of them goes on after the caller
    for error in filter(None, errors):
        raise error


@cache
def num_threads() -> int:
    """How many cores this process may use, up to a limit."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    return min(cores, _MOST)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads(), "columns")


def _stripe(work: Callable[[int], None], parts: Sequence[int]) -> None:
    for part in parts:
        work(part)
