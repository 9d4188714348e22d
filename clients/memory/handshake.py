"""What a client remembers between rounds, in two versions, so that a lost reply changes nothing.

A client cannot know whether its reply arrived. It therefore keeps what it remembered before (*committed*)
beside what it would remember if the reply counts (*pending*), each tagged with its round. Every task says
in which round the server last accepted the client (`last-accepted`, 0 = never): the client then commits the
pending version or drops it. A lost, late or rejected reply is so no different from a client that was not
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

ClientState = Mapping[str, NDArray[Any]]  # a method's own vectors and scalars by name


@dataclass(frozen=True)
class Memory:
    """The two versions of a client's state.

    Attributes
    ----------
    committed, tag
        State as of the last round in which the client knows that it was accepted, and that round; 0: never.
    pending, pending_tag
        State if the reply of round `pending_tag` was accepted; None: there is none.
    """

    committed: ClientState = field(default_factory=dict)
    tag: int = 0
    pending: ClientState | None = None
    pending_tag: int = 0

    def open(self, last_accepted: int) -> tuple[Memory, bool]:
        """Settle what became of the last reply.

        Parameters
        ----------
        last_accepted
            Last round in which the server accepted this client, 0 for never.

        Returns
        -------
        memory, resync
            Memory without a pending version; whether client and server disagree, because the client was
            installed anew or the server went back to an old checkpoint: its state is then empty.
        """
        if self.pending is not None and last_accepted == self.pending_tag:
            return Memory(self.pending, self.pending_tag), False
        if last_accepted == self.tag:
            return Memory(self.committed, self.tag), False
        return Memory({}, last_accepted), True

    def stage(self, server_round: int, state: ClientState) -> Memory:
        """Keep the state that holds if the reply of this round is accepted."""
        return Memory(self.committed, self.tag, state, server_round)
