"""Whether a run fits into this machine's memory, checked before it takes any."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from fedtide.base import dotted
from fedtide.base.contract.fit import planned_steps
from fedtide.base.errors import SettingsError
from fedtide.base.memory import check_room, gigabytes, replies_limit
from fedtide.base.spill import folder_of_large_files
from fedtide.base.wording import count

if TYPE_CHECKING:
    from torch import nn

# Copies of the weights that a server has, in the model's type: the models of the run and of the evaluation,
# each with its gradient, the initial weights, those sent, and its own in float64, which count twice.
COPIES = 8
FROZEN_COPIES = 3  # of weights that are not trained: of the run, of the evaluation, and as they are saved

WORKER_COPIES = 4  # of a worker on Ray: the model, its gradient, and what a client starts from and ends at

OUTPUT_COPIES = 9  # of a test set's outputs, in float32: log_loss takes 8.3, the area under the ROC curve 6

EXAMPLE_BYTES = 24  # of each example of a step while its client trains: its index, and copies of it


def check_fits(model: str, build: Callable[[], nn.Module]) -> None:
    """Raise ValueError for a model too large to train here; it is built on PyTorch's `meta` device."""
    import torch  # which --show-trace does not need
    from torch.nn.parameter import is_lazy

    own = dotted.is_dotted("model", model.partition(":")[0])
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pretrained weights are not loaded here
            tensors = [*(module := build()).parameters(), *module.buffers()]
    except Exception as error:
        if own and not isinstance(error, SettingsError):  # a mistake, which shows when the model is built
            return
        if isinstance(error, OverflowError | RuntimeError | TypeError | AttributeError):  # beyond 64 bits
            raise SettingsError(f"model {model}: it has more weights than any machine can hold") from None
        raise
    if any(map(is_lazy, tensors)):
        advice = "call it once, on zeros of shape (1, *input_shape), before you return it"
        raise SettingsError(f"model {model}: it has lazy layers, whose weights are not there yet; {advice}")
    frozen = {id(p) for p in module.parameters() if not p.requires_grad}
    copies = (FROZEN_COPIES if id(t) in frozen else COPIES for t in tensors)
    count = sum(t.numel() for t in tensors)
    needed = sum(number * t.nbytes for number, t in zip(copies, tensors, strict=True))
    check_room(f"model {model} has {count:,} weights", needed, "use a smaller model")


def check_steps(local_steps: int, local_epochs: int, batch_size: int, num_examples: int) -> None:
    """Raise ValueError if the indices of the largest client's batches are too large for this machine."""
    batch = min(batch_size or num_examples, num_examples)
    steps = planned_steps(local_steps, local_epochs, batch, num_examples)
    unit, given = ("epochs", local_epochs) if local_epochs else ("steps", local_steps)
    check_room(f"local-{unit} is {given}", EXAMPLE_BYTES * steps * batch, f"use fewer {unit}")


def check_metrics(examples: int, outputs: int, views: Collection[str]) -> str:
    """Return a line about what metrics of this many examples take, if it is much; ValueError: too much.

    There are `outputs` for each; `views` are what the metrics get: `fedtide.tasks.metrics.View`.
    """
    of_one = 16 + sum(4 * outputs * OUTPUT_COPIES for view in views if view not in ("labels", "losses"))
    what = f"metrics of {examples:,} test examples, each with {count(outputs, 'output')}"
    check_room(what, examples * of_one, "take metrics of predicted labels (y_pred) only, or fewer examples")
    if examples * of_one < replies_limit():
        return ""
    return f"{what}, take up to {gigabytes(examples * of_one)} at each evaluation"


def check_round(
    clients: int, size: int, workers: int, kept: bool, table: tuple[float, float] = (0, 0)
) -> str:
    """Return a line about what a round takes, if that is more than RAM should hold; else nothing.

    `size`: bytes of a client's vector. `kept`: whether replies wait in RAM, as in event time. `table`: bytes
    of the file of the clients' vectors at the server after the first round, and in the end, when all clients
    have taken part. ValueError: there is too little room for a round.
    """
    replies, folder = clients * size, folder_of_large_files()
    in_file = replies > replies_limit()
    in_memory = (COPIES + WORKER_COPIES * workers) * size + kept * replies + (not in_file) * replies
    fewer = "fewer clients a round (clients-per-round), or a smaller model"
    what = f"a round of {clients:,} clients, whose replies have {gigabytes(replies)}"
    check_room(what, in_memory, f"use {'fewer workers (num-workers), ' if workers else ''}{fewer}")
    free, on_disk, (begin, end) = shutil.disk_usage(folder).free, in_file * replies, table
    room = f"{folder} has {gigabytes(free)} left"
    if on_disk + begin > free:
        also = f", and their vectors at the server {gigabytes(begin)} more" if begin else ""
        raise SettingsError(f"{what}{also}: {room}; free space, set TMPDIR, or use {fewer}")
    told = [f"the replies of a round lie in a file of {gigabytes(replies)}"] if in_file else []
    fits = on_disk + end <= free
    if end:
        short = "" if fits else ", for which there is too little room"
        told.append(f"the vectors of all clients will take {gigabytes(end)}{short}")
    return "; ".join([*told, room]) if told else ""
