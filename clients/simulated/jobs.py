"""What a client is asked to do, what it prepares for it, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.draws import BatchIndices, client_rng, draw_batches
from clients.memory.handshake import Memory, open_memory
from clients.rules import rule_named
from fedtide.ground.contract import REPORTED, FitConfig, Reported, metrics
from fedtide.tasks import FederatedData


class Broadcast(NamedTuple):
    """What all clients of a round receive: weights, and the method's arrays that all have in common, (M,)."""

    weights: NDArray[Any]
    shared: tuple[NDArray[Any], ...] = ()


class Job(NamedTuple):
    """What one client is asked to do; `until` and `stop` are those of `clients.training.LocalDeadline`."""

    client: int
    arrays: Sequence[NDArray[Any]]  # the method's for this client, after the shared ones
    config: FitConfig
    completion: float  # share of the planned steps for which it is available
    memory: Any = None  # or where that is stored, see `VirtualClients.load`; None: it has none yet
    weights: NDArray[Any] | None = None  # its own to start from, (M,); None: those that all clients receive
    until: float | None = None
    stop: Callable[[], bool] | None = None


class PreparedJob(NamedTuple):
    """A job that is ready to run: its batches are drawn and its memory is open, see `open_memory`."""

    job: Job
    batches: BatchIndices
    num_examples: int
    memory: Memory
    resync: bool


def prepare(
    job: Job, steps: int, memory: Memory | None, data: FederatedData, seed: int, draws: bool = False
) -> PreparedJob:
    """Draw the batches of a client for the steps that it is available for, and open its memory.

    `draws` says whether the model draws random numbers in training, as for dropout. A client without
    examples, or of an unknown rule, is a ValueError.
    """
    client, config = job.client, job.config
    rule_named(config.rule)
    num_examples = int(data.sizes[client])
    if not num_examples:
        raise ValueError("the client has no examples")
    rng = client_rng(seed, b"batches", client, config.round)
    batches = draw_batches(num_examples, config.batch_size, steps, rng)
    if (augmentation := getattr(data, "augmentation", None)) is not None:
        rng = client_rng(seed, b"augmentation", client, config.round)
        batches = batches._replace(changes=augmentation.draw(len(batches.indices), rng))
    if draws:
        rng = client_rng(seed, b"dropout", client, config.round)
        batches = batches._replace(seeds=rng.integers(2**63, size=steps))
    return PreparedJob(job, batches, num_examples, *open_memory(memory, config.last_accepted))


class ClientUpdate(NamedTuple):
    """What one client returns besides its weights."""

    client: int
    extra: Sequence[NDArray[Any]]  # the method's own arrays
    metrics: dict[str, int | float]  # see `fedtide.ground.contract.metrics`
    num_examples: int
    memory: Memory | None  # from now on; None: unchanged


@dataclass(frozen=True)
class Updates:
    """What K clients return, a sequence of `ClientUpdate` that is kept in columns.

    Many clients train in a millisecond: an object and a dictionary for each would take as long. `extra` is
    empty where no client sends arrays of the method, `memories` where all are unchanged.
    """

    reported: Reported = field(default_factory=lambda: np.empty(0, REPORTED))
    extra: Sequence[Sequence[NDArray[Any]]] = ()
    memories: Sequence[Memory] = ()

    def __len__(self) -> int:
        return len(self.reported)

    def __iter__(self) -> Iterator[ClientUpdate]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, k: int) -> ClientUpdate:
        row = self.reported[k]
        memory = self.memories[k] if self.memories else None
        extra = self.extra[k] if self.extra else []
        return ClientUpdate(int(row["client"]), extra, metrics.of_row(row), int(row["num_examples"]), memory)

    def kept(self, wanted: NDArray[np.bool_]) -> Updates:
        """Return the updates of some clients, chosen by a mask of shape (K,)."""
        if wanted.all():
            return self
        at = np.flatnonzero(wanted).tolist()
        extra = [self.extra[k] for k in at] if self.extra else ()
        memories = [self.memories[k] for k in at] if self.memories else ()
        return Updates(self.reported[wanted], extra, memories)


def joined(parts: Sequence[Updates]) -> Updates:
    """Return the updates of several groups of clients, one after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else Updates()
    extra = [own for part in parts for own in part.extra]
    memories = [memory for part in parts for memory in part.memories]
    return Updates(np.concatenate([part.reported for part in parts]), extra, memories)
