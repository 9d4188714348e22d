"""Faults while virtual clients train: a call that hangs, and too little memory."""

from __future__ import annotations

import errno
import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that this machine, or its GPU, has too little memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if what is done inside takes longer than `seconds`; 0: no limit.

    Only that ends code that hangs in C. Standard error then shows the lines at which the threads were.
    """
    if not seconds:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
