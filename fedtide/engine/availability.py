"""Who is available in the rounds of a trace, and a client manager that says so to strategies."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial

import numpy as np
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from numpy.typing import NDArray

from fedtide.engine.transports.base import Transport
from strategies import Forecast
from traces import RoundAvailability, Trace
from traces.base import SECOND, availability_in, in_seconds
from traces.clock import TimedTrace
from traces.compose import parts_of


class RoundClock:
    """The rounds of a trace, which say who is there, and maybe how long each of them takes.

    Attributes
    ----------
    round, lost
        Functions of a round: who is there then, and whose replies are lost after its work, shape (N,).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        # As several parts of the engine need the same one.
        self.round = lru_cache(maxsize=2)(partial(availability_in, trace))
        self.lost = trace.lost
        clocks: list[TimedTrace] = parts_of(trace, "clock")
        self._clock = clocks[0] if len(clocks) == 1 else None

    @property
    def first(self) -> RoundAvailability:
        """Who is there in the first round; looking at it begins no round."""
        return self.round(1)

    def seconds(self, t: int) -> float | None:
        """Return the end of round t; None: the trace has no clock."""
        end = self.trace.ends(t)
        return None if end is None else end / SECOND

    def is_over(self) -> bool:
        """Return False: a trace has any number of rounds."""
        return False

    def work_seconds(self, t: int, clients: NDArray[np.intp]) -> float | None:
        """Return the working time of clients that are online in round t; None: there is no one clock."""
        clock = self._clock
        return None if clock is None else float(clock.work_time(t, clients).sum()) / SECOND

    @property
    def forecast(self) -> Forecast | None:
        """What a trace with one clock knows: this object."""
        return None if self._clock is None else self

    def elapsed(self, t: int) -> float:
        return (self._end(t) - self._end(t - 1)) / SECOND

    def leave(self, t: int, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        assert self._clock is not None
        begin = self._end(t - 1)
        return in_seconds(self._clock.leave(begin, clients)) - begin / SECOND

    def _end(self, t: int) -> int:
        return self.trace.ends(t) or 0


class TraceClientManager(ClientManager):
    """Reports which clients are available in each round; makes proxies only for those selected.

    `seed` is that of the samples that Flower's own strategies draw.
    """

    def __init__(
        self, availability: Callable[[int], RoundAvailability], transport: Transport, seed: int
    ) -> None:
        self.availability, self.transport, self.seed = availability, transport, seed
        self.begin(1)

    def begin(self, server_round: int) -> None:
        """Begin a round; methods without a round argument refer to it."""
        self.round = server_round
        self._available: NDArray[np.intp] | None = None
        self._at_work: NDArray[np.intp] | None = None

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Return the clients that are members, online, reachable and not at work, in ascending order."""
        if server_round != self.round:
            self.begin(server_round)
        if self._available is None:
            now = self.availability(server_round)
            free, reachable = now.member & now.online, self.transport.reachable()
            free[self.at_work(server_round)] = False
            online = np.flatnonzero(free)
            self._available = online if reachable is None else np.intersect1d(online, reachable)
        return self._available

    def at_work(self, server_round: int) -> NDArray[np.intp]:
        """Return the clients that are still at work on an earlier task, in ascending order."""
        if server_round != self.round:
            self.begin(server_round)
        if self._at_work is None:
            self._at_work = self.transport.at_work()
        return self._at_work

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the clients that have arrived and departed since the previous round; none in round 1."""
        if server_round == 1:
            nobody = np.empty(0, np.intp)
            return nobody, nobody
        before, now = self.availability(server_round - 1).member, self.availability(server_round).member
        changed = np.flatnonzero(before != now)
        return changed[now[changed]], changed[before[changed]]

    def release(self, clients: NDArray[np.intp]) -> None:
        """Take clients for free in the current round, as their tasks are stopped."""
        self._at_work = np.setdiff1d(self.at_work(self.round), clients)
        self._available = None

    def num_offline(self) -> int:
        """Count the members that are neither available nor at work in the current round."""
        member = self.availability(self.round).member
        at_work = np.count_nonzero(member[self.at_work(self.round)])
        return int(np.count_nonzero(member) - at_work) - self.num_available()

    def record(self) -> dict[str, list[int]]:
        """Return the clients that could be asked in the current round, and in round 1 the members.

        With these, the record of a run on devices says who was there; the trace `run` replays it.
        """
        who = {"available": self.available(self.round).tolist()}
        if self.round == 1:
            who["members"] = np.flatnonzero(self.availability(1).member).tolist()
        return who

    def proxy(self, client: int) -> ClientProxy:
        return self.transport.proxy(client)

    def limited_to(self, clients: NDArray[np.intp]) -> TraceClientManager:
        """Return a manager of these clients alone for the current round, given in ascending order."""
        limited = copy(self)
        limited._available = clients
        return limited

    # Flower's interface, for its own strategies

    def num_available(self) -> int:
        """Count the clients that are available in the current round."""
        return len(self.available(self.round))

    def all(self) -> dict[str, ClientProxy]:
        """Return the proxies of all available clients, by name."""
        return {str(client): self.proxy(client) for client in self.available(self.round).tolist()}

    def sample(
        self, num_clients: int, min_num_clients: int | None = None, criterion: Criterion | None = None
    ) -> list[ClientProxy]:
        """Sample available clients uniformly without replacement; return all of them if there are fewer.

        With fewer than `min_num_clients` available the sample is empty: availability does not change within
        a round, so waiting would not help.
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
        """Return at once whether this many clients are available: that does not change within a round."""
        return self.num_available() >= num_clients

    def register(self, client: ClientProxy) -> bool:
        """Accept the client, as Flower expects; the trace decides which clients are available."""
        return True

    def unregister(self, client: ClientProxy) -> None:
        """Do nothing, see `register`."""
