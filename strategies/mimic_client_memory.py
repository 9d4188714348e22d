"""MimiC with the corrections at the clients (Sun et al. 2024, "Practical Implementations").

A client keeps the ghat_i of its last accepted round t and uploads ghat_i + c_i; the server sees sums only, as
secure aggregation needs it. The rule is clients/rules/uploads.py. With H, the sum of what departed
clients have passed on to each of the others,

    c_i = b_i + H - ghat_i^old,    b_i = v_t - H as H was in round t.

The server keeps v_t - H of every round that still is the last accepted one of a member. A member that has
never replied has b_i = -H as H was when it arrived, so that its c_i starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies import Clients, ClientTable, Replies, Rule, Task, Vector
from strategies.mimic import MimiC


class _Change(NamedTuple):
    """How the members have changed before a round: who arrived, how many are older, and what H was."""

    arrived: Clients
    remaining: int
    H: Vector


class MimiCClientMemory(MimiC):
    """MimiC whose clients keep their part of c_i; `corrections` has H, and b_i of those who never replied."""

    rule = Rule("corrected-upload", scalars=("per-step",), remembers=True, sends="vector")
    saved = ("v_by_round",)

    def setup(self) -> None:
        """Start with c_i = 0."""
        super().setup()
        self.v_by_round = ClientTable(self.layout, self.options)  # v_t - H; its rows are rounds, not clients
        self._outgoing: dict[int, NDArray[Any]] = {}  # the same array for all clients of a round
        self._changed = _Change(np.empty(0, np.intp), 0, self.corrections.handed_over)

    def shared_task(self) -> Task:
        """Tell clients what ghat_i is: a mean gradient, or the whole update."""
        return Task(scalars={"per-step": self.options.units == "gradient"})

    def task(self, client: int) -> Task | None:
        """Return b_i, from which the client makes c_i; nothing to a client that never replied."""
        last = int(self.roster.accepted[client])
        if not last:
            return None
        if last not in self._outgoing:
            self._outgoing[last] = self.v_by_round.read(np.array([last]))[0].astype(self.layout.dtype)
        return Task(arrays=(self._outgoing[last],))

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 8 and 9; lines 6 and 10 are the clients'.

        Clients upload ghat_i + b_i - ghat_i^old, or ghat_i alone if they have no memory: they never replied,
        so that the server adds their b_i, or they have lost it, so that their c_i is 0 as if they were new.
        """
        clients, H = replies.clients, self.corrections.handed_over
        never = self.roster.accepted[clients] == 0
        total = replies.ordered_sum(np.ones(len(replies)))
        total += self.corrections.table.read(clients[never]).sum(axis=0, dtype=np.float64)
        total -= H * int((replies.resync & ~never).sum())
        v = total / len(replies) + H  # line 8
        self.weights -= self.server_rate(replies) * v  # line 9
        self.v_by_round.write(np.array([self.round]), (v - H)[None])
        self._forget(replies)
        self.started = True

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Pass c_l on to the others, now for those who never replied, or else with the client's farewell."""
        remaining = self.roster.num_contributors - len(arrived)
        self._changed = _Change(arrived, remaining, self.corrections.handed_over)
        self.corrections.change(arrived, left[self.roster.accepted[left] == 0], remaining)

    def farewells(self, states: Mapping[int, Vector | None]) -> None:
        """Pass on c_l = b_l + H - ghat_l, with H as it was when the client left."""
        (arrived, remaining, H), total = self._changed, np.zeros(self.layout.size)
        for client, ghat in states.items():
            if ghat is not None:
                (b,) = self.v_by_round.read(np.array([self.roster.accepted[client]], np.intp))
                total += b + H - ghat
        self.corrections.hand_over(total, arrived, remaining)

    def _forget(self, replies: Replies) -> None:
        """Forget what no member needs after this round."""
        last = self.roster.accepted.copy()
        last[replies.clients] = self.round
        for old in np.setdiff1d(self.v_by_round.clients, last[self.roster.member]).tolist():
            self.v_by_round.drop(old)
        for client in np.intersect1d(self.corrections.table.clients, replies.clients).tolist():
            self.corrections.table.drop(client)
        self._outgoing = {}
