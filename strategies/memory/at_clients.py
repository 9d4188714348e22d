"""What is left for the server where the clients keep the vectors.

A client remembers what it did in its last accepted round (see clients/memory/handshake.py) and uploads what
follows from that, one vector of M numbers and no weights; the server uses nothing but sums of the uploads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Clients, Roster
from strategies.core.state import Stateful
from strategies.memory.table import ClientTable, TableOptions

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(TableOptions):
    """Options of methods whose memory can be at the server or at the clients.

    Attributes
    ----------
    memory
        `server` keeps a vector for each client, any Flower client will do. `client` has the clients of this
        project keep them: the server needs hardly any memory, and the sum of the uploads is all that it uses.
        Who leaves the objective is asked for its vector, once; if it does not answer, its part stays.
    """

    memory: Literal["server", "client"] = "server"


class LatestSum(Stateful):
    """The sum of vectors of which each client keeps its own: FedLaAvg's u_i, uploaded as differences.

    Attributes
    ----------
    total
        sum_i u_i in float64, shape (M,).
    orphans
        How many parts of it nobody can take back any more: of clients that left without an answer, or that
        lost their memory and count as new ones. N counts them like departed clients that stay in the
        objective.
    """

    saved: ClassVar[tuple[str, ...]] = ("total", "orphans")

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size)
        self.orphans = 0

    def add(self, replies: Replies, contributed: NDArray[np.bool_]) -> None:
        """total += sum_i (u_i^new - u_i^old); `contributed`: whose u_i^old is part of it, shape (K,)."""
        self.total += replies.ordered_sum(np.ones(len(replies)))
        self.orphans += int((replies.resync & contributed).sum())

    def remove(self, vector: Vector | None) -> None:
        """Take out the u_i of a client that left; None: it is not known."""
        if vector is None:
            self.orphans += 1
        else:
            self.total -= vector


class CorrectionRing(Stateful):
    """What MimiC's clients need for their c_i, of which they know ghat_i of their last accepted round.

    c_i = b_i + H - ghat_i, where H is what departed clients passed on to all that stayed, and b_i = v_t - H
    at the client's last accepted round t. The ring keeps v_t - H of every round that still is the last
    accepted one of a member. A member that never replied has c_i = 0 from its arrival on, so that its b_i is
    -H of then (and 0 for members from the start).

    Parameters
    ----------
    layout
        Layout of the weights.
    options
        Type and place of the tables.
    roster
        Whose reply counted when; before a round's replies are noted there.

    Attributes
    ----------
    handed_over
        H, shape (M,).
    """

    saved: ClassVar[tuple[str, ...]] = ("by_round", "by_arrival", "handed_over")

    def __init__(self, layout: Layout, options: TableOptions, roster: Roster) -> None:
        self.by_round = ClientTable(layout, options)  # v_t - H; its rows are of rounds t
        self.by_arrival = ClientTable(layout, options)  # b_i of those who arrived later and never replied
        self.handed_over: Vector = np.zeros(layout.size)
        self._roster, self._dtype = roster, layout.dtype
        self._outgoing: dict[int, NDArray[Any]] = {}  # the same array for all clients of a round
        self._leaving: dict[int, Vector] = {}  # H when a client left whose farewell is still to come
        self._remaining = 0  # members after the last departure, without those who arrived in the same round

    def outgoing(self, client: int) -> NDArray[Any] | None:
        """Return the b_i that a client needs; None: it never replied, and needs nothing."""
        last = int(self._roster.accepted[client])
        if not last:
            return None
        if last not in self._outgoing:
            self._outgoing[last] = self.by_round.read(np.array([last]))[0].astype(self._dtype)
        return self._outgoing[last]

    def mean(self, replies: Replies) -> Vector:
        """v_t := (1/|S_t|) sum_i (ghat_i + c_i), shape (M,).

        Clients upload ghat_i + b_i - ghat_i^old, or ghat_i alone if they have no memory: they never replied,
        so that the server adds their b_i, or they have lost it, so that their c_i is 0 as if they were new.
        """
        total = replies.ordered_sum(np.ones(len(replies)))
        never = self._roster.accepted[replies.clients] == 0
        total += self.by_arrival.read(replies.clients[never]).sum(axis=0, dtype=np.float64)
        total -= self.handed_over * int((replies.resync & ~never).sum())
        return total / len(replies) + self.handed_over

    def close(self, replies: Replies, server_round: int, v: Vector) -> None:
        """Keep v_t of a round, and forget what no member needs any more."""
        self.by_round.write(np.array([server_round]), (v - self.handed_over)[None])
        last = self._roster.accepted.copy()
        last[replies.clients] = server_round
        for old in np.setdiff1d(self.by_round.clients, last[self._roster.member]).tolist():
            self.by_round.drop(old)
        for client in np.intersect1d(self.by_arrival.clients, replies.clients).tolist():
            self.by_arrival.drop(client)
        self._outgoing = {}

    def arrive(self, client: int) -> None:
        """Start a new member with c_l = 0."""
        if self.handed_over.any():
            self.by_arrival.write(np.array([client]), -self.handed_over[None])

    def depart(self, client: int) -> None:
        """Pass c_l on, as soon as the client has sent its ghat_l; one that never replied has none."""
        self._remaining = self._roster.num_contributors
        if self._roster.accepted[client]:
            self._leaving[client] = self.handed_over
        else:
            self._hand_over(self.by_arrival.drop(client) + self.handed_over)

    def farewell(self, client: int, ghat: Vector | None, arrived: Clients) -> None:
        """Pass on c_l = b_l + H - ghat_l; nothing of it goes to those who `arrived` in this round."""
        then = self._leaving.pop(client)
        if ghat is None:
            return
        (b,) = self.by_round.read(self._roster.accepted[[client]])
        self._hand_over(b + then - ghat)
        for new in arrived.tolist():
            self.arrive(new)

    def _hand_over(self, correction: Vector) -> None:
        """H := H + c_l / N; when nobody is left, all is forgotten."""
        if self._remaining:
            self.handed_over = self.handed_over + correction / self._remaining
        else:
            self.handed_over = np.zeros_like(correction)
