"""A client manager that replays a trace: a client that is offline in a round is not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from numpy.typing import NDArray

from flexfl.engine.transports.base import Transport
from traces import RoundAvailability, Trace


def remember(trace: Trace) -> Callable[[int], RoundAvailability]:
    """`trace.round`, with the last rounds kept: several parts of the engine ask for the same one."""
    return lru_cache(maxsize=2)(trace.round)


class TraceClientManager(ClientManager):
    """Answers who is visible in a round; proxies are made for those who are selected only.

    Parameters
    ----------
    availability
        The trace, see `remember`.
    transport
        Makes the proxies, and knows which clients are connected.
    seed
        Of the samples that Flower's own strategies draw.
    """

    def __init__(
        self, availability: Callable[[int], RoundAvailability], transport: Transport, seed: int
    ) -> None:
        self.availability, self.transport, self.seed = availability, transport, seed
        self.begin(1)

    def begin(self, server_round: int) -> None:
        """Let a round begin; the methods without a round argument answer for it."""
        self.round = server_round
        self._visible: NDArray[np.intp] | None = None

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are members, online and reachable, in ascending order."""
        if server_round != self.round:
            self.begin(server_round)
        if self._visible is None:
            now = self.availability(server_round)
            online, reachable = np.flatnonzero(now.member & now.online), self.transport.reachable()
            self._visible = online if reachable is None else np.intersect1d(online, reachable)
        return self._visible

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Clients that arrived and that departed since the previous round; nobody does before the first."""
        if server_round == 1:
            nobody = np.empty(0, np.intp)
            return nobody, nobody
        before, now = self.availability(server_round - 1).member, self.availability(server_round).member
        return np.flatnonzero(now & ~before), np.flatnonzero(before & ~now)

    def num_offline(self) -> int:
        """Count the members that are not visible in the present round."""
        return int(self.availability(self.round).member.sum()) - self.num_available()

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client."""
        return self.transport.proxy(client)

    # What Flower's own strategies ask for

    def num_available(self) -> int:
        """Count the clients that are visible in the present round."""
        return len(self.available(self.round))

    def all(self) -> dict[str, ClientProxy]:
        """Proxies of all visible clients by name."""
        return {str(client): self.proxy(client) for client in self.available(self.round).tolist()}

    def sample(
        self, num_clients: int, min_num_clients: int | None = None, criterion: Criterion | None = None
    ) -> list[ClientProxy]:
        """Draw visible clients uniformly, by the seed; all of them where there are fewer.

        Waiting for `min_num_clients` would not help, as the trace stands still within a round: with fewer
        visible clients the sample is empty.
        """
        available = self.available(self.round)
        if criterion is not None:
            chosen = [k for k in available.tolist() if criterion.select(self.proxy(k))]
            available = np.array(chosen, np.intp)
        if len(available) < (min_num_clients or 0):
            return []
        count = min(num_clients, len(available))
        rng = np.random.default_rng([self.seed, *b"sample", self.round])
        drawn = np.sort(rng.choice(available, count, replace=False))
        return [self.proxy(client) for client in drawn.tolist()]

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Whether this many clients are visible; the trace stands still, so there is nothing to wait for."""
        return self.num_available() >= num_clients

    def register(self, client: ClientProxy) -> bool:
        """Accept, as Flower expects: who takes part is decided by the trace."""
        return True

    def unregister(self, client: ClientProxy) -> None:
        """Accept, see `register`."""
