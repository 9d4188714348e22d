"""The members of the federation: clients arrive, depart, and hand in their state as they go.

What a departed client contributed has to be taken back (FedLaAvg) or distributed (MimiC). Where clients keep
that themselves, the server asks for it, once, in the round in which it learns of the departure: a farewell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from flwr.common import FitIns
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.norms import MAX_NORM, norm
from strategies.core.parameters import read_vector
from strategies.core.replies import Arrays, Replies
from strategies.core.roster import Clients
from strategies.core.round import RoundInstructions, Task
from strategies.core.state import ByClient, Stateful

if TYPE_CHECKING:
    from strategies.core.strategy import FlexibleStrategy

SMOOTHING = 0.3  # weight of the newest loss in the running mean


def exclusion_pays(remaining: int, gamma: float, shift: int, constant: float = 1.0) -> bool:
    """Decide whether to exclude: T - tau_0 >= constant * sqrt(Gamma_l tau_0) (Corollary 4.0.3, eq. 9).

    `remaining` is T - tau_0, rounds left after the departure, `shift` tau_0, those done, and `constant` the
    O(.) of the paper. `gamma`, Gamma_l = F_l(w*) - F_l^*, is how far the client's data differ from the rest.
    """
    return remaining >= constant * math.sqrt(gamma * shift)


def judge(gamma: float, shift: int, num_rounds: int, constant: float) -> dict[str, Any]:
    """Decide on a departure after round `shift`, with the numbers that the decision rests on.

    An unknown Gamma_l (`gamma` NaN) or an unknown T (`num_rounds` 0) counts in favour of excluding.
    """
    remaining, known = max(0, num_rounds - shift), not math.isnan(gamma)
    exclude = not known or not num_rounds or exclusion_pays(remaining, gamma, shift, constant)
    return {
        "objective": "exclude" if exclude else "include",
        "remaining": remaining,
        "gamma": gamma if known else None,
        "tau_0": shift,
        "constant": constant,
    }


class LossTracker(ByClient):
    """Estimates Gamma_l from the losses that a client reports beside its weights.

    F_l(w*) is estimated by the running mean of its training loss near the global model, F_l^* by the lowest
    loss that its own local training ever reached. A client that reports no final loss counts with F_l^* = 0,
    the lower bound of every loss here, so that its Gamma_l is over- rather than underestimated.
    """

    saved = ("mean", "lowest")

    def __init__(self) -> None:
        self.mean: NDArray[np.float64] = np.empty(0)  # NaN where no loss was reported
        self.lowest: NDArray[np.float64] = np.empty(0)

    def update(self, replies: Replies) -> None:
        """Take in the losses of a round."""
        clients, loss, final = replies.clients, replies.train_loss, replies.final_loss
        self.extend(int(clients.max()) + 1)
        mean = self.mean[clients]
        new = loss + (1 - SMOOTHING) * (np.where(np.isnan(mean), loss, mean) - loss)
        self.mean[clients] = np.where(np.isfinite(loss), new, mean)
        self.lowest[clients] = np.fmin(self.lowest[clients], np.where(np.isfinite(final), final, np.nan))

    def gammas(self, clients: Clients) -> NDArray[np.float64]:
        """Gamma_l of some clients, NaN for those that never reported a loss, shape (K,)."""
        self.extend(int(clients.max(initial=-1)) + 1)
        lowest = self.lowest[clients]
        gammas: NDArray[np.float64] = self.mean[clients] - np.where(np.isnan(lowest), 0.0, lowest)
        return np.maximum(gammas, 0.0)


Proxies = Callable[[int], ClientProxy]
Event = dict[str, Any]


@runtime_checkable
class AvailabilityManager(Protocol):
    """A client manager that knows who is available without an object for each client."""

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are online, in ascending order."""

    def at_work(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are still at work on an earlier task, in ascending order; they are not available."""

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Clients that arrived and that departed since the previous round."""

    def release(self, clients: Clients) -> None:
        """Take clients for free in the current round, as their tasks are stopped."""

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client; raises KeyError for one that cannot be reached."""


def is_availability_manager(manager: ClientManager) -> TypeGuard[AvailabilityManager]:
    """Whether a client manager is of this kind: `isinstance` would not remember the answer."""
    return issubclass(type(manager), AvailabilityManager)


class Members(Stateful):
    """Keeps the roster up to date, and then tells the method, once a round, who has come and who has gone."""

    saved = ("roster", "losses", "announced")

    def __init__(self, method: FlexibleStrategy) -> None:
        self.roster, self.options, self.method = method.roster, method.options, method
        self.losses = LossTracker()  # with `departure=auto`; otherwise nothing
        self.announced: list[int] = []  # who has said in the last round that it leaves
        self.awaiting_farewell: list[int] = []  # who leaves in this round and has a state to hand in
        self.stopped: Clients = np.empty(0, np.intp)  # whose tasks have become too old for this round
        self._arrived, self._left = list[int](), list[int]()  # of whom the method is not told yet
        self._without: list[int] = []  # who has said in this round that it has no data

    def begin(self, server_round: int, manager: ClientManager) -> tuple[Clients, Clients, Proxies]:
        """Begin a round: carry out what has been announced and what the manager knows; tell the method.

        Return the members that can be asked, the clients still at work on an earlier task, both in ascending
        order, and what gives the proxy of a client. Those that are `stopped` are among both.
        """
        for client in sorted(self.announced):
            self.depart(client)
            self.roster.departed_for_good[client] = True
        self.announced = []
        founding = self.roster.num_members == 0
        if is_availability_manager(manager):
            arrived, departed = manager.membership_changes(server_round)
            for client in departed.tolist():
                self.depart(client)
            for client in arrived.tolist():
                self.arrive(client)
            at_work = manager.at_work(server_round)
            if self.options.stop_late:
                self.stopped = self.method.tasks.older_than(
                    self.method.version - self.options.max_lag, at_work[self.roster.member[at_work]]
                )
                manager.release(self.stopped)
            available = manager.available(server_round)
            proxy: Proxies = manager.proxy
        else:
            proxies = self._register(manager)
            available, proxy = np.array(sorted(proxies), np.intp), proxies.__getitem__
            at_work = np.empty(0, np.intp)  # Flower waits for all replies
        if founding:  # there is no old objective that the first members could be late for
            self.roster.joined[:] = 0
        self._tell()
        present = (self.roster.member & ~self.roster.departed)[available]
        return available if present.all() else available[present], at_work, proxy

    def arrive(self, client: int) -> None:
        """Admit a client before the current round: the objective shifts to include its data."""
        member = self.roster.member[client]
        self.roster.arrive(client, self.method.round)
        if not member and not self.roster.data_less[client]:
            self._arrived.append(client)
        if self.method.round > 1:
            self._note({"event": "arrival", "client": client})

    def depart(self, client: int) -> None:
        """Let a client go before the current round, with or without its part of the objective."""
        if self.roster.departed[client]:
            return
        event: Event = {"event": "departure", "client": client, "objective": self.options.departure}
        if self.options.departure == "auto":
            (gamma,) = self.losses.gammas(np.array([client])).tolist()
            horizon = (self.method.round - 1, self.options.num_rounds)
            event |= judge(gamma, *horizon, self.options.departure_constant)
        self._remove(client, event["objective"] == "include")
        self._note(event)

    def abandon(self, client: int, numbers: Event) -> None:
        """Let a member go for good that has not asked for it; `numbers` are those of the decision."""
        self._remove(client, keep=False)
        self._tell()
        self.roster.departed_for_good[client] = True
        self._note({"event": "abandonment", "client": client, **numbers})

    def identify(self, name: str, client_id: str) -> None:
        """Learn, before the replies to a round are taken in, who a client is that was known as `name`.

        If a client of that identity is known, the new one was that one all along: it answers the task.
        """
        roster = self.roster
        client, known = roster.register(name), roster.find(client_id)
        if known is None:
            roster.rename(client, client_id)
        elif known != client:
            self.method.tasks.hand_over(client, known)
            roster.asked[known] = roster.asked[client]
            self._remove(client, keep=False)
            if roster.departed[known]:
                self.arrive(known)
            self._tell()
            roster.departed_for_good[client] = True

    def announce_departure(self, client: int) -> None:
        """Note that a client leaves after this round."""
        if client not in self.announced:
            self.announced.append(client)

    def ask_leaving(self, instructions: RoundInstructions[FitIns], proxy: Proxies) -> None:
        """Ask the clients that leave in this round, if they can still be reached, for their state."""
        for client in self.awaiting_farewell:
            with suppress(KeyError):
                accepted = int(self.roster.accepted[client])
                task = Task(last_accepted=accepted, farewell=True, rule=self.method.rule)
                instructions.add(proxy(client), task)

    def take_leave(self, farewells: Mapping[str, Arrays]) -> None:
        """Let the clients go that leave, with the states that they have sent, by their names."""
        leaving, self.awaiting_farewell = self.awaiting_farewell, []
        if not leaving:
            return
        states = dict[int, NDArray[np.float64]]()
        for name, sent in farewells.items():
            if (client := self.roster.find(name)) is not None and client in leaving:
                try:
                    states[client] = _read_state(sent, self.method.layout.size)
                except ValueError as reason:
                    self.method.report.reject(name, str(reason))
        self.method.farewells({client: states.get(client) for client in leaving})
        for client in leaving:
            self.roster.forget(client)
            self._note({"event": "farewell", "client": client, "received": client in states})

    def note_data(self, replies: Replies) -> None:
        """Note what replies say about the clients' data, and tell the method who has some, or none."""
        roster, clients = self.roster, replies.clients
        found, said = clients[roster.data_less[clients]], self._without
        roster.note_sizes(clients, replies.num_examples)
        if not (len(found) or said):
            return
        without, self._without = np.setdiff1d(np.array(said, np.intp), clients), []
        roster.note_data(found, some=True)
        roster.note_data(without, some=False)
        found, without = (changed[roster.member[changed]] for changed in (found, without))
        if len(found) or len(without):
            self.method.data_changed(found, without)

    def note_losses(self, replies: Replies) -> None:
        """Note the losses of a round's active replies, from which departures are judged."""
        if self.options.departure == "auto":
            self.losses.update(replies)

    def note_no_data(self, client: int) -> None:
        """Note that a client reports no data, unless it had some: its part of the state is from these."""
        if not self.roster.accepted[client] and not self.roster.data_less[client]:
            self._without.append(client)

    def _remove(self, client: int, keep: bool) -> None:
        roster = self.roster
        contributed = roster.contributors[client]
        roster.depart(client, self.method.round, keep)
        if contributed:
            if not keep and self.method.overrides("farewells") and roster.accepted[client]:
                self.awaiting_farewell.append(client)
            if not keep:
                self._left.append(client)
        if not keep:
            self.losses.forget(client)
            self.method.selection.forget(client)
            if client not in self.awaiting_farewell:
                roster.forget(client)

    def _tell(self) -> None:
        """Tell the method who has entered the objective and who has left it."""
        arrived, left = np.array(sorted(self._arrived), np.intp), np.array(sorted(self._left), np.intp)
        self._arrived, self._left = [], []
        if len(arrived) or len(left):
            self.method.members_changed(arrived, left)

    def _note(self, event: Event) -> None:
        self.method.report.events.append(event)

    def _register(self, manager: ClientManager) -> dict[int, ClientProxy]:
        """Return the proxies of a stock client manager by index; clients never seen before arrive."""
        proxies: dict[int, ClientProxy] = {}
        for name, proxy in sorted(manager.all().items()):
            client = self.roster.register(name)
            proxies[client] = proxy
            if not self.roster.departed[client] and not self.roster.member[client]:
                self.arrive(client)
        return proxies


def _read_state(sent: Arrays, size: int) -> NDArray[np.float64]:
    """Return the state that a client hands in; ValueError if it cannot be used."""
    state = read_vector(sent, size).astype(np.float64)
    if not (largest := norm(state)) <= MAX_NORM:
        raise ValueError(f"a state of norm {largest:.3g}")
    return state
