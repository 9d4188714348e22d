"""Membership of a federation of devices: the clients that have connected when a round begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.transports.base import Transport
from strategies import Roster
from traces import RoundAvailability, Trace
from traces.base import check_round, complete_if_online


class ConnectedClients(Trace):
    """The rounds of a federation as they happen, as a trace whose members are the connected clients.

    A round is observed when it is asked for first, after the round before; later it stays what it was. Rounds
    that nobody has observed have the members of the roster.

    `founders` are the members of round 1; a client that is not available for more than `max_absence` rounds
    has departed (0: never). In event time, when rounds end while others are at work, these count as
    available. `roster` is the strategy's, once there is one: it knows who has announced a departure.
    """

    def __init__(
        self,
        num_clients: int,
        connection: Transport,
        founders: NDArray[np.intp],
        max_absence: int = 0,
        in_event_time: bool = False,
    ) -> None:
        self.num_clients, self.connection, self.max_absence = num_clients, connection, max_absence
        self.in_event_time = in_event_time
        self.roster: Roster | None = None
        self._founders = np.isin(np.arange(num_clients), founders)
        self._members = {1: self._founders}
        self._seen = np.ones(num_clients, np.int64)  # the last round in which each was available
        self._reachable = self._founders
        self._begun = False

    def round(self, t: int) -> RoundAvailability:
        check_round(t)
        if self.roster is not None and not self._begun:
            # A run may resume after a round that another process observed, with others connected now.
            self._begun = True
            self._members = {t: self._present()}
            self._seen[:] = t
        if t not in self._members:
            known = self._present()
            self._members[t] = self._observe(t, known) if t == max(self._members) + 1 else known
        now = complete_if_online(np.ones(self.num_clients, np.bool_))
        return now._replace(member=self._members[t].copy())

    def _observe(self, t: int, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the members of round t, given those of the round before."""
        reachable, at_work = np.zeros((2, self.num_clients), np.bool_)
        reachable[self.connection.reachable()] = True
        at_work[self.connection.at_work()] = True
        free = reachable if self.in_event_time else reachable & ~at_work
        self._seen[free] = t
        left = np.zeros_like(free) if self.roster is None else self.roster.departed_for_good
        # A client that left for good returns only with a new connection, a silent one with any sign of life.
        members = members | free & (~left | ~self._reachable)
        self._reachable = reachable
        if self.max_absence:
            members &= t - self._seen <= self.max_absence
        return members

    def _present(self) -> NDArray[np.bool_]:
        """Return the members that have not departed."""
        if self.roster is None:
            return self._founders
        present: NDArray[np.bool_] = self.roster.member & ~self.roster.departed
        return present
