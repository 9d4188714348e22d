"""How often each member is available, and how much that depends on the round before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies import ByClient, Clients

Counts = NDArray[np.int64]


class Availability(ByClient):
    """Counts of the rounds since each client became a member: in which it was available, selected or not.

    Whether it has data does not matter: one that gets some has been there before.
    """

    saved = ("rounds", "seen", "stayed_on", "stayed_off", "online", "member")

    def __init__(self) -> None:
        self.rounds: Counts = np.zeros(0, np.int64)  # of its membership, shape (N,) or longer
        self.seen: Counts = np.zeros(0, np.int64)  # those in which it was available
        self.stayed_on: Counts = np.zeros(0, np.int64)  # and was so in the round before, too
        self.stayed_off: Counts = np.zeros(0, np.int64)  # those in which it was away, as in the round before
        self.online: NDArray[np.bool_] = np.zeros(0, bool)  # available in the last one
        self.member: NDArray[np.bool_] = np.zeros(0, bool)  # in the last round

    def observe(self, available: Clients, member: NDArray[np.bool_]) -> None:
        """Note who is available in a round, and who is a member, shape (N,): who was none begins anew."""
        self.extend(len(member))
        for client in np.flatnonzero(member & ~self.member[: len(member)]).tolist():
            self.forget(client)
        self.member[: len(member)] = member
        now = np.zeros(len(self.rounds), bool)
        now[available] = True
        known = self.rounds > 0
        self.stayed_on += known & self.online & now
        self.stayed_off += known & ~self.online & ~now
        self.rounds += 1
        self.seen += now
        self.online = now

    def shares(self, clients: Clients) -> NDArray[np.float64]:
        """pi_k, the share of the rounds in which a client was available, shape (K,)."""
        return self.seen[clients] / self.rounds[clients]

    def correlations(self, clients: Clients) -> NDArray[np.float64]:
        """lambda_k: P(on after on) + P(off after off) - 1, 0 while not known, shape (K,)."""
        on = self.seen[clients] - self.online[clients]  # rounds that another one followed
        off = self.rounds[clients] - 1 - on
        stays = self.stayed_on[clients] / np.maximum(on, 1) + self.stayed_off[clients] / np.maximum(off, 1)
        return np.where((on > 0) & (off > 0), stays - 1, 0.0)
