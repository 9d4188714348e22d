"""Whether a model fits into this machine's memory, found out before it takes any."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from flexfl import dotted

# How often a server has the weights, in the model's type: the models of the run and of the evaluation, each
# with its gradient, the initial weights, those sent, and its own in float64, which count twice.
COPIES = 8


def check_fits(model: str, build: Callable[[], nn.Module]) -> None:
    """Refuse a model that is too large to train here.

    Parameters
    ----------
    model
        Its name, for the message.
    build
        Makes it; here without its weights, on PyTorch's `meta` device.

    Raises
    ------
    ValueError
        Tells how much memory the model needs and how much there is.
    """
    own = dotted.is_dotted("model", model.partition(":")[0])
    try:
        with torch.device("meta"):
            tensors = [*(module := build()).parameters(), *module.buffers()]
    except (OverflowError, RuntimeError, TypeError, AttributeError):  # sizes beyond 64 bits
        if own:  # or a mistake in somebody's code, which shows when the model is made
            return
        raise ValueError(f"model {model}: it has more weights than any machine can hold") from None
    needed, there = COPIES * sum(t.nbytes for t in tensors), total_memory()
    if needed > there:
        count = sum(t.numel() for t in tensors)
        raise ValueError(
            f"model {model}: with {count:,} weights, a run needs {_gigabytes(needed)}, but this machine has "
            f"{_gigabytes(there)}; take a smaller model"
        )


def total_memory() -> float:
    """Return the bytes of memory that this process may use; infinity where the system does not tell."""
    limits = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # of a container; `max` where it has no limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits)


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB"
