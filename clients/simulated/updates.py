"""The results of training besides the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from fedtide.ground.contract import REPORTED, Reported, metrics


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

    round: int = 0
    reported: Reported = field(default_factory=lambda: np.empty(0, REPORTED))
    extra: Sequence[Sequence[NDArray[Any]]] = ()
    memories: Sequence[Memory] = ()

    def __len__(self) -> int:
        return len(self.reported)

    def __iter__(self) -> Iterator[ClientUpdate]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, k: int) -> ClientUpdate:
        client, n, steps, train_loss, final_loss, _, resync = self.reported[k].item()
        reported: dict[str, int | float] = {
            metrics.CLIENT_ID: client,
            metrics.ROUND: self.round,
            metrics.STEPS: steps,
            metrics.TRAIN_LOSS: train_loss,
            metrics.FINAL_LOSS: final_loss,
        }
        reported |= {metrics.RESYNC: True} if resync else {}
        memory = self.memories[k] if self.memories else None
        return ClientUpdate(client, self.extra[k] if self.extra else [], reported, n, memory)

    def kept(self, wanted: NDArray[np.bool_]) -> Updates:
        """Return the updates of some clients, chosen by a mask of shape (K,)."""
        if wanted.all():
            return self
        at = np.flatnonzero(wanted).tolist()
        extra = [self.extra[k] for k in at] if self.extra else ()
        memories = [self.memories[k] for k in at] if self.memories else ()
        return Updates(self.round, self.reported[wanted], extra, memories)


def joined(parts: Sequence[Updates]) -> Updates:
    """Return the updates of several groups of clients that did the same task, one after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else Updates()
    extra = [own for part in parts for own in part.extra]
    memories = [memory for part in parts for memory in part.memories]
    return Updates(parts[0].round, np.concatenate([part.reported for part in parts]), extra, memories)
