"""MimiC's corrections c_i, kept by the server or by the clients.

Both forms compute the same (Sun et al. 2024, Algorithm 1 and "Practical Implementations"). In both, a client
that leaves the objective hands its c_l over to the others in equal parts: without that, their corrections
would sum to -c_l for ever, a bias towards the client that left. What was handed over is one vector H, added
when a correction is used: c_i = b_i + H - ghat_i, where b_i = v_t - H at the client's last accepted round t.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Roster
from strategies.core.state import Stateful
from strategies.memory.table import ClientTable, TableOptions

Clients = NDArray[np.intp]
Vectors = NDArray[np.float64]


def corrected_sum(updates: Vectors, corrections: NDArray[np.floating]) -> Vectors:
    """sum_i v_i with v_i = ghat_i + c_i (Algorithm 1, line 6), from arrays of shape (K, M)."""
    total: Vectors = updates.sum(axis=0) + corrections.sum(axis=0, dtype=np.float64)
    return total


def new_corrections(mean: Vectors, updates: Vectors) -> Vectors:
    """c_i := v_t - ghat_i (Algorithm 1, line 10), shape (K, M), in place of the updates."""
    return np.subtract(mean, updates, out=updates)


class Corrections(Stateful):
    """What both forms share.

    Parameters
    ----------
    layout
        Layout of the weights.
    options
        Type and place of the table.
    roster
        Who is a member, and whose reply counted when; before a round's replies are noted there.

    Attributes
    ----------
    handed_over
        H, from members that left to all that stayed, shape (M,).
    """

    saved: ClassVar[tuple[str, ...]] = ("table", "handed_over")

    def __init__(self, layout: Layout, options: TableOptions, roster: Roster) -> None:
        self.table = ClientTable(layout, options)
        self.roster = roster
        self.handed_over: Vectors = np.zeros(layout.size)

    @abstractmethod
    def mean(self, replies: Replies, per_delta: Vectors, server_round: int) -> Vectors:
        """v_t := (1/|S_t|) sum_i (ghat_i + c_i), shape (M,); then the new corrections.

        `per_delta` is ghat_i / delta_i, shape (K,).
        """

    @abstractmethod
    def arrive(self, client: int) -> None:
        """Start a new member with c_l = 0, which keeps the sum."""

    @abstractmethod
    def depart(self, client: int) -> None:
        """Hand over the c_l of a client that left the objective."""

    def hand_over(self, correction: Vectors, heirs: int) -> None:
        """H := H + c_l / N; without any heirs all is forgotten."""
        self.handed_over = self.handed_over + correction / heirs if heirs else np.zeros_like(correction)


class ServerCorrections(Corrections):
    """A table of b_i - ghat_i at the server."""

    def read(self, clients: Clients) -> Vectors:
        """c_i of some members, shape (K, M)."""
        return self.table.read(clients) + self.handed_over

    def mean(self, replies: Replies, per_delta: Vectors, server_round: int) -> Vectors:
        """Algorithm 1, lines 5 to 10, for some entries of the vectors at a time."""
        v = np.empty_like(self.handed_over)

        def corrected(columns: slice, deltas: Vectors, rows: NDArray[np.floating]) -> Vectors:
            deltas *= per_delta[:, None]  # now ghat_i
            handed_over = self.handed_over[columns]
            v[columns] = corrected_sum(deltas, rows) / len(replies) + handed_over
            return new_corrections(v[columns] - handed_over, deltas)

        self.table.change(replies, corrected)
        return v

    def arrive(self, client: int) -> None:
        """Start a new member with c_l = 0."""
        if self.handed_over.any():
            self.table.write(np.array([client]), -self.handed_over[None])

    def depart(self, client: int) -> None:
        """Hand c_l over at once."""
        (c,) = self.read(np.array([client]))
        self.table.drop(client)
        self.hand_over(c, self.roster.num_contributors)


class ClientCorrections(Corrections):
    """Each client knows its ghat_i, uploads ghat_i + b_i - ghat_i^old, and is sent the b_i for that.

    The table is a ring: b = v_t - H of every round t that is still some member's last accepted round, and -H
    of the rounds in which members arrived that have not replied yet. A client that never replied uploads
    ghat_i alone, and the server adds its b_i; so does one that lost its memory, whose old part stays in the
    sum of the others for good.
    """

    def __init__(self, layout: Layout, options: TableOptions, roster: Roster) -> None:
        super().__init__(layout, options, roster)
        self._dtype = layout.dtype
        self._outgoing: dict[int, NDArray[np.floating]] = {}  # the same object for all clients of a round
        self._leaving: dict[int, Vectors] = {}  # H when a client left whose farewell is waited for
        self._heirs = 0

    def outgoing(self, client: int) -> NDArray[np.floating] | None:
        """Return the b_i that a client needs; None: it never replied, and needs nothing."""
        if not self.roster.accepted[client]:
            return None
        (key,) = self._keys(np.array([client]))
        if key not in self._outgoing:
            self._outgoing[key] = self.table.read(np.array([key]))[0].astype(self._dtype)
        return self._outgoing[key]

    def mean(self, replies: Replies, per_delta: Vectors, server_round: int) -> Vectors:
        """The mean of the uploads, and the ring's next entry."""
        total = replies.vectors.sum(axis=0, dtype=np.float64)
        new = replies.clients[self.roster.accepted[replies.clients] == 0]
        total += self.table.read(self._keys(new)).sum(axis=0, dtype=np.float64)
        v: Vectors = total / len(replies) + self.handed_over
        last = self.roster.accepted.copy()
        last[replies.clients] = server_round
        self.table.write(np.array([2 * server_round]), (v - self.handed_over)[None])
        self._forget(last)
        return v

    def arrive(self, client: int) -> None:
        """Start a new member with c_l = 0."""
        if self.handed_over.any():
            self.table.write(self._keys(np.array([client])), -self.handed_over[None])

    def depart(self, client: int) -> None:
        """Hand c_l over, as soon as the client has told its ghat_l; one that never replied has none."""
        self._heirs = self.roster.num_contributors
        if self.roster.accepted[client]:
            self._leaving[client] = self.handed_over
            return
        (b,) = self.table.read(self._keys(np.array([client])))
        self.hand_over(b + self.handed_over, self._heirs)

    def farewell(self, client: int, ghat: Vectors | None, server_round: int) -> None:
        """Hand over c_l = b_l + H - ghat_l; who arrived since the client left gets nothing of it."""
        then = self._leaving.pop(client)
        if ghat is None:
            return
        (b,) = self.table.read(self._keys(np.array([client])))
        self.hand_over(b + then - ghat, self._heirs)
        roster = self.roster
        arrived = np.flatnonzero(roster.member & (roster.accepted == 0) & (roster.joined == server_round - 1))
        if len(arrived):
            self.arrive(int(arrived[0]))  # one entry for all of them

    def _keys(self, clients: Clients, last: NDArray[np.int64] | None = None) -> Clients:
        """Where the b_i of clients are in the table: by their last accepted round, or else by their arrival.

        Members from the start that never replied have the number 1, which is in no table, and so b_i = 0.
        """
        accepted = (self.roster.accepted if last is None else last)[clients]
        return np.where(accepted > 0, 2 * accepted, 2 * self.roster.joined[clients] + 1)

    def _forget(self, last: NDArray[np.int64]) -> None:
        """Drop what no member needs any more; `last` are the last accepted rounds, shape (N,)."""
        needed = self._keys(np.flatnonzero(self.roster.member), last)
        for key in np.setdiff1d(self.table.clients, needed).tolist():
            self.table.drop(key)
        self._outgoing = {}
