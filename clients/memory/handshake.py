"""A client's memory between rounds, in two versions, so that a lost reply changes nothing.

A client cannot know whether its reply arrived. It therefore keeps the state that it had (*committed*) beside
the one that it will have if the reply counts (*pending*), each tagged with its round. Every task says in
which round the server last accepted the client (`last-accepted`, 0 = never): the client then commits the
pending state or drops it. So a lost, late or rejected reply is no different from an inactive client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

ClientState = Mapping[str, NDArray[Any]]
"""What a method keeps at a client, vectors and scalars by name: what a rule reads and returns."""


@dataclass(frozen=True)
class Memory:
    """Two versions of a client's state.

    `committed` is the state as of round `tag`, the last in which the server accepted the client, as far as
    the client knows (0: never); `pending` the state if the reply of round `pending_tag` was accepted.
    """

    committed: ClientState = field(default_factory=dict)
    tag: int = 0
    pending: ClientState | None = None
    pending_tag: int = 0

    def open(self, last_accepted: int) -> tuple[Memory, bool]:
        """Commit the pending state or drop it, given the last round in which the server accepted the client.

        Return the memory without a pending state; and whether client and server disagree, because the client
        was reinstalled or the server resumed from an older checkpoint: the state is then empty.
        """
        if self.pending is not None and last_accepted == self.pending_tag:
            return Memory(self.pending, self.pending_tag), False
        if last_accepted == self.tag:
            return Memory(self.committed, self.tag), False
        return Memory({}, last_accepted), True

    def stage(self, server_round: int, state: ClientState) -> Memory:
        """Add the state that holds if the reply of this round is accepted."""
        return Memory(self.committed, self.tag, state, server_round)


_NO_MEMORY = Memory()


def open_memory(memory: Memory | None, last_accepted: int | None) -> tuple[Memory, bool]:
    """Open a client's memory, if it has one, for a task: see `Memory.open`.

    Without `last_accepted` the task's rule keeps no state, and no memory is used.
    """
    if last_accepted is None:
        return _NO_MEMORY, False
    return (memory or _NO_MEMORY).open(last_accepted)
