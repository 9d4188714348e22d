"""Random histories of a federation, played with the real rules and memories of clients in float64.

Clients arrive, depart and return, one at a time or all at once, until nobody is left; some have no data at
first; replies are lost or late, farewells are lost.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from devices import Device
from fakes import AT_ONCE, SIZES, START, M, N, Rounds
from flwr.common import FitRes, ndarrays_to_parameters
from hypothesis import strategies as st

import strategies
from strategies import Roster

E = 3
LOST = -1
FIRST = range(N - 2)  # members at the start
CLIENTS = st.integers(0, N - 1)


class Round(NamedTuple):
    """Who is online, with its steps and by how many rounds its reply is late, and who comes or goes."""

    online: dict[int, tuple[int, int]]
    moved: str | set[int]  # "all" who are there leave and the others come, "out" all leave; or these clients
    silent: set[int]  # whose farewell is lost

    def changes(self, there: np.ndarray) -> tuple[list[int], list[int]]:
        """Who arrives and who departs."""
        everybody = {*range(N)}
        moved = {"all": everybody, "out": {*np.flatnonzero(there).tolist()}}.get(str(self.moved), self.moved)
        arrived, departed = ([k for k in sorted(moved) if there[k] == was] for was in (False, True))
        return arrived, departed


class History(NamedTuple):
    """Rounds of a federation whose clients get data in the round `data` says; 0: they have some."""

    rounds: list[Round]
    data: list[int]
    known: bool  # whether the server knows from the start who has none
    departure: str

    def punctual(self, farewells: bool = True) -> "History":
        """The same, where nothing is late, and every farewell comes."""
        rounds = [
            r._replace(
                online={client: (steps, min(late, 0)) for client, (steps, late) in r.online.items()},
                silent=set() if farewells else r.silent,
            )
            for r in self.rounds
        ]
        return self._replace(rounds=rounds)


ONLINE = st.dictionaries(CLIENTS, st.tuples(st.integers(1, E), st.sampled_from([0, 0, 0, 1, 2, LOST])))
MOVED = st.one_of(st.just(set[int]()), st.sets(CLIENTS, max_size=2), st.sampled_from(["all", "all", "out"]))
ROUNDS = st.lists(
    st.builds(Round, ONLINE, MOVED, st.one_of(st.just(set[int]()), st.sets(CLIENTS))), min_size=1, max_size=10
)
HISTORIES = st.builds(
    History,
    ROUNDS,
    st.lists(st.sampled_from([0, 0, 0, 3, 99]), min_size=N, max_size=N),
    st.booleans(),
    st.sampled_from(["exclude", "exclude", "include"]),
)


def device(client: int) -> Device:
    """A client with an objective of its own."""
    rng = np.random.default_rng(client)
    curvature, optimum = rng.uniform(0.2, 2, M), rng.normal(size=M)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum), lambda at: curvature.copy())


def begin(name: str, members: Any, at: Any = None, sizes: Any = SIZES, **options: Any) -> Any:
    """A strategy that begins at these weights, shape (M,)."""
    start = [a.copy() for a in START]
    if at is not None:
        cuts = np.cumsum([a.size for a in start])[:-1]
        start = [w.reshape(a.shape) for w, a in zip(np.split(at, cuts), start, strict=True)]
    options = {"local_steps": E, **AT_ONCE.get(name, {}), **options}
    roster = Roster(sizes, np.isin(np.arange(N), list(members)))
    return strategies.make(name, ndarrays_to_parameters(start), roster, **options)


class Federation:
    """A strategy and its clients."""

    def __init__(self, name: str, history: History, **options: Any) -> None:
        self.history = history
        self.with_data = np.array(history.data) == 0
        sizes = np.where(self.with_data, SIZES, 0) if history.known else SIZES
        self.restart(begin(name, FIRST, sizes=sizes, departure=history.departure, **options))
        self.devices = [device(client) for client in range(N)]
        self.under_way: dict[int, tuple[int, FitRes]] = {}
        # Of the round that was played last: when clients had been accepted before, who arrived, who was asked
        # for a farewell, and who did not answer.
        self.accepted = self.strategy.roster.accepted.copy()
        self.arrived, self.left, self.silenced = list[int](), set[int](), list[int]()

    def restart(self, strategy: Any) -> None:
        """Go on with another strategy, whose first round comes next."""
        self.strategy, self.rounds = strategy, Rounds(strategy)

    def play(self) -> Iterator[int]:
        """Play the rounds; yield the number of each when it is over."""
        for number, played in enumerate(self.history.rounds, start=1):
            self._play(number, played)
            yield number

    def members(self) -> np.ndarray:
        """Members with data, as the server knows it."""
        return np.flatnonzero(self.strategy.roster.contributors)

    def kept(self, client: int) -> dict[str, np.ndarray]:
        """What a client would train with, were it asked now."""
        memory, _ = self.devices[client].memory.open(int(self.strategy.roster.accepted[client]))
        return dict(memory.committed)

    def vector(self, client: int) -> np.ndarray:
        """The one vector that a client keeps, zeros if there is none."""
        return next(iter(self.kept(client).values()), np.zeros(M))

    def _play(self, number: int, played: Round) -> None:
        roster, rounds = self.strategy.roster, self.rounds
        self.with_data |= np.array(self.history.data) == number
        arrived, departed = played.changes(roster.member & ~roster.departed)
        if self.history.departure == "exclude":  # who leaves the objective gives its work up
            self.under_way = {k: task for k, task in self.under_way.items() if k not in departed}
        rounds.manager.working = sorted(self.under_way)
        self.accepted = roster.accepted.copy()
        asked = rounds.ask(played.online, arrived, departed)
        due = {k: result for k, (at, result) in self.under_way.items() if at == number}
        self.under_way = {k: task for k, task in self.under_way.items() if task[0] > number}
        farewells = {k for k, instruction in asked.items() if instruction.config.get("farewell")}
        self.arrived, self.silenced = arrived, sorted(farewells & played.silent)
        self.left = farewells
        for client, instruction in asked.items():
            steps, late = (1, 0) if client in farewells else played.online[client]
            result = self.devices[client].fit(instruction, steps)
            if client in farewells:
                late = LOST if client in played.silent else 0
            elif not self.with_data[client]:
                result = replace(result, num_examples=0)
            if late > 0:
                self.under_way[client] = number + late, result
            elif late == 0:
                due[client] = result
        rounds.hear(*sorted(due.items(), reverse=True))
