"""Whether a run fits into this machine's memory, checked before it takes any."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedtide.ground import dotted
from fedtide.ground.contract.fit import planned_steps

if TYPE_CHECKING:
    from torch import nn

# Copies of the weights that a server has, in the model's type: the models of the run and of the evaluation,
# each with its gradient, the initial weights, those sent, and its own in float64, which count twice.
COPIES = 8
FROZEN_COPIES = 3  # of weights that are not trained: of the run, of the evaluation, and as they are saved

CLIENT_BYTES = 100  # of each client of a federation, in the trace, roster and data
EXAMPLE_BYTES = 24  # of each example of a step while its client trains: its index, and copies of it


def check_fits(model: str, build: Callable[[], nn.Module]) -> None:
    """Raise ValueError for a model too large to train here; it is built on PyTorch's `meta` device."""
    import torch  # which --show-trace does not need

    own = dotted.is_dotted("model", model.partition(":")[0])
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pretrained weights are not loaded here
            tensors = [*(module := build()).parameters(), *module.buffers()]
    except (OverflowError, RuntimeError, TypeError, AttributeError):  # sizes beyond 64 bits
        if own:  # or a mistake in a custom model, which shows when it is built
            return
        raise ValueError(f"model {model}: it has more weights than any machine can hold") from None
    frozen = {id(p) for p in module.parameters() if not p.requires_grad}
    copies = (FROZEN_COPIES if id(t) in frozen else COPIES for t in tensors)
    count = sum(t.numel() for t in tensors)
    needed = sum(number * t.nbytes for number, t in zip(copies, tensors, strict=True))
    _check(f"model {model} has {count:,} weights", needed, "use a smaller model")


def check_clients(num_clients: int) -> None:
    """Raise ValueError for a federation that is too large for this machine."""
    _check(f"num-clients is {num_clients}", CLIENT_BYTES * num_clients, "use fewer clients")


def check_steps(local_steps: int, local_epochs: int, batch_size: int, num_examples: int) -> None:
    """Raise ValueError if the indices of the largest client's batches are too large for this machine."""
    batch = min(batch_size or num_examples, num_examples)
    steps = planned_steps(local_steps, local_epochs, batch, num_examples)
    unit, given = ("epochs", local_epochs) if local_epochs else ("steps", local_steps)
    _check(f"local-{unit} is {given}", EXAMPLE_BYTES * steps * batch, f"use fewer {unit}")


def _check(what: str, needed: float, advice: str) -> None:
    there = total_memory()
    if needed > there:
        raise ValueError(
            f"{what}: that needs {_gigabytes(needed)}, but this machine has {_gigabytes(there)}; {advice}"
        )


def total_memory() -> float:
    """Return the bytes of memory that this process may use; infinity where the system does not say."""
    limits = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # of a container; `max` where it has no limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits)


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB"
