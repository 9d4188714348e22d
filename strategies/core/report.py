"""What a round brought, as the strategy saw it."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

LONGEST = 200  # characters of a name or a reason in a report
MAX_WARNINGS = 1000  # a client may give another reason in every round


def shortened(text: str) -> str:
    """Return text that a client may have written as one printable line of bounded length."""
    line = " ".join(text[: 2 * LONGEST].split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(text) <= 2 * LONGEST and len(line) <= LONGEST else f"{line[:LONGEST]}..."


class ClientFailure(Exception):  # noqa: N818 - an event of the round, passed on as Flower passes failures
    """A client that was asked and did not return a valid reply.

    `seconds` is how long it took until that was known; NaN: not measured.
    """

    def __init__(self, client: str, reason: str, seconds: float = math.nan) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason, self.seconds = client, reason, seconds


@dataclass
class RoundReport:
    """The outcome of one round, complete when `aggregate_fit` has returned.

    A reply in `late` answers a task of an earlier round and counted: its `client`, the round of its `task`,
    and `lag`, how often the global weights have changed since then. What did not count is in `rejected`.
    """

    learning_rate: float = 0.0  # the clients'
    active: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # ascending
    planned: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # their E_k, (K,)
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # their s_k, (K,)
    incomplete: int = 0  # how many of them did fewer steps
    rejected: list[tuple[str, str]] = field(default_factory=list)  # name of the client, and reason
    diverged: bool = False  # one of these had weights that are not finite, or too large
    late: list[dict[str, int]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # arrivals, departures, decisions
    measured: dict[str, Any] = field(default_factory=dict)  # the method's own, by names in the round's record

    def reject(self, name: str, reason: str) -> None:
        """Note a reply that does not count."""
        self.rejected.append((shortened(name), shortened(reason) or "without a reason"))

    def counts(self) -> dict[str, int]:
        """Return how many replies did not count for each kind of reason, as fit metrics."""
        if not self.rejected:
            return {}
        found = Counter(kind(reason) for _, reason in self.rejected)
        return {f"rejected: {reason}": count for reason, count in sorted(found.items())}

    def warn(self, server_round: int, logged: set[tuple[str, str]]) -> None:
        """Name the replies that do not count in Flower's log, once for each client and kind of reason."""
        for client, reason in self.rejected:
            if is_news(client, reason, logged):
                message = "round %d: the reply of client %s does not count: %s"
                log(WARNING, message, server_round, client, reason)


def is_news(name: str, reason: str, logged: set[tuple[str, str]]) -> bool:
    """Whether this kind of reason has not been logged of somebody yet, and is noted as logged from now on."""
    warning = name, kind(reason)
    if warning in logged or len(logged) >= MAX_WARNINGS:
        return False
    logged.add(warning)
    return True


def kind(reason: str) -> str:
    """Return a reason with an N for each number: what differs in them only is the same mistake."""
    return re.sub(r"\d[\w.+-]*", "N", reason)
