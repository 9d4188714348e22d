"""Who belongs to the federation: clients arrive, say that they leave, and are asked once more as they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.common import FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.farewells import Farewells, event
from strategies.core.interfaces import AvailabilityManager
from strategies.core.options import Options
from strategies.core.roster import Roster
from strategies.parts.departures import LossTracker, judge


class WithMembers:
    """The part of a strategy that keeps the roster up to date.

    Attributes
    ----------
    roster
        The clients, and who of them is a member.
    losses
        What their training losses tell about a departure.
    departing
        Clients that have told in the last round that they leave.
    farewells
        Those who leave in this round and have something to hand over.
    round, options, rejected, events
        See `FlexibleStrategy`.
    """

    roster: Roster
    losses: LossTracker
    departing: list[int]
    farewells: Farewells
    round: int
    options: Options
    rejected: list[tuple[str, str]]
    events: list[dict[str, Any]]

    # What a method overrides

    def on_arrival(self, client: int) -> None:
        """Adapt the method's state to a new member (it is in the roster already)."""

    def on_departure(self, client: int, keep: bool) -> None:
        """Adapt the method's state to a departure; `keep` tells that the client stays in the objective."""

    def leaves_memory(self, client: int) -> bool:
        """Whether a client that leaves the objective is asked once more, for what it remembers."""
        return False

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Take in what a client that has left remembered, shape (M,); None: it did not answer.

        This comes after `on_departure`, at the end of the same round and before its `update`.
        """

    # What a strategy calls

    def arrive(self, client: int) -> None:
        """Admit a client before the current round: the objective shifts to include its data."""
        kept = self.roster.member[client]
        self.roster.arrive(client, self.round)
        if not kept:
            self.on_arrival(client)
        if self.round > 1:
            self.events.append({"event": "arrival", "client": client})

    def depart(self, client: int) -> None:
        """Let a client go before the current round, with or without its part of the objective."""
        if self.roster.gone[client]:
            return
        event: dict[str, Any] = {"event": "departure", "client": client, "objective": self.options.departure}
        if self.options.departure == "auto":
            gamma = self.losses.gamma(client)
            event |= judge(gamma, self.round - 1, self.options.num_rounds, self.options.departure_constant)
        keep, member = event["objective"] == "include", self.roster.member[client]
        self.roster.depart(client, self.round, keep)
        if member:
            if not keep and self.leaves_memory(client):
                self.farewells.leaving.append(client)
            self.on_departure(client, keep)
        self.events.append(event)

    def meet(self, manager: ClientManager) -> tuple[NDArray[np.intp], Callable[[int], ClientProxy]]:
        """Bring the roster up to date; the available members, in ascending order, and how to get a proxy."""
        for client in sorted(self.departing):
            self.depart(client)
        self.departing = []
        founding = self.roster.num_members == 0
        proxy: Callable[[int], ClientProxy]
        if isinstance(manager, AvailabilityManager):
            arrived, departed = manager.membership_changes(self.round)
            for client in departed.tolist():
                self.depart(client)
            for client in arrived.tolist():
                self.arrive(client)
            available, proxy = manager.available(self.round), manager.proxy
        else:
            proxies = self._met(manager)
            available, proxy = np.array(sorted(proxies), np.intp), proxies.__getitem__
        if founding:  # there is no old objective that the first members could be late for
            self.roster.joined[:] = 0
        return available[~self.roster.gone[available]], proxy

    def take_leave(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], size: int
    ) -> list[tuple[ClientProxy, FitRes]]:
        """Take in the answers, vectors of this size, of those who leave; the results of the others."""
        answers, others, rejected = self.farewells.hear(server_round, results, self.roster.find, size)
        self.rejected += rejected
        for client, memory in answers.items():
            self.on_farewell(client, memory)
            self.events.append(event(client, memory))
        return others

    def _met(self, manager: ClientManager) -> dict[int, ClientProxy]:
        """Return the proxies of a stock client manager by index; clients never seen before arrive."""
        proxies: dict[int, ClientProxy] = {}
        for name, proxy in sorted(manager.all().items()):
            client = self.roster.register(name)
            proxies[client] = proxy
            if not self.roster.gone[client] and not self.roster.member[client]:
                self.arrive(client)
        return proxies
