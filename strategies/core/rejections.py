"""Telling of replies that did not count where nobody reads the report: under a server of Flower's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from logging import WARNING

from flwr.common import log

Rejected = Sequence[tuple[str, str]]  # name of the client and reason


MOST = 1000  # warnings: a client may give another reason in every round


class RejectionLog:
    """Warns through Flower's logger, once for each client and kind of reason, up to 1,000 times in all."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def warn(self, server_round: int, rejected: Rejected) -> None:
        """Tell of the replies of a round that did not count."""
        for client, reason in rejected:
            told = client, kind(reason)
            if told not in self._told and len(self._told) < MOST:
                self._told.add(told)
                message = "round %d: the reply of client %s does not count: %s"
                log(WARNING, message, server_round, client, reason)


def counts(rejected: Rejected) -> dict[str, int]:
    """Return how many replies did not count for each kind of reason, as fit metrics."""
    found = Counter(kind(reason) for _, reason in rejected)
    return {f"rejected: {reason}": count for reason, count in sorted(found.items())}


def kind(reason: str) -> str:
    """Return a reason with an N for each number: what differs in them only is the same mistake."""
    return re.sub(r"\d[\w.+-]*", "N", reason)
