"""What goes wrong in a fleet: nodes that leave and join, hang, answer rubbish, or are slow."""

from __future__ import annotations

import threading
from collections import Counter, deque

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict

# Of the nodes that get a task: the share that has each fault.
LEAVES, HANGS, RUBBISH, SLOW = 0.10, 0.01, 0.01, 0.05
FAULTS = ("leaves", "hangs", "rubbish", "slow")


class Faults:
    """Draws the fault of each task from (seed, client, round), and knows which clients are away.

    A node that leaves does so before its answer or after it, and another client joins in its place: the one
    that has been away longest. One that hangs is restarted after `patience` seconds; a slow one answers so
    late, up to twice that. With `share` 0 there are no faults; with 1 those of above.
    """

    def __init__(self, nodes: int, away: int, share: float, patience: float) -> None:
        self.share, self.patience = share, patience
        self.had: Counter[str] = Counter()
        self._away = deque(range(nodes, nodes + away))
        self._lock = threading.Lock()

    def of(self, client: int, group: str) -> tuple[str, float]:
        """Return the fault of a client in a round, empty: none, and a number below 1 that says how."""
        rng = np.random.default_rng([client, *group.encode()])
        drawn, kind = rng.random(2)
        edges = self.share * np.cumsum([LEAVES, HANGS, RUBBISH, SLOW])
        fault = (*FAULTS, "")[int(np.searchsorted(edges, drawn, side="right"))]
        if fault:
            with self._lock:
                self.had[fault] += 1
        return fault, float(kind)

    def next_for(self, client: int) -> int:
        """Return the client that joins when this one leaves."""
        with self._lock:
            self._away.append(client)
            return self._away.popleft()


def rubbish(task: Message, kind: float) -> Message:
    """Return an answer that no server can use: an error, nothing, or bytes."""
    if kind < 1 / 3:
        return Message(Error(2, "rubbish"), reply_to=task)
    content = ConfigRecord({"one-object": b"\xff" * 100, "rubbish": "x"})
    return Message(RecordDict({"one-object": content} if kind < 2 / 3 else {}), reply_to=task)
