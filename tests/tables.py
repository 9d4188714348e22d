"""Random tables of rounds: incomplete work, lost and late replies, arrivals and departures."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from devices import Device
from fakes import SIZES, N, Rounds, delta, make, work
from flwr.common import FitIns, FitRes
from hypothesis import given, settings
from hypothesis import strategies as st

E = 4
LOST = -1
TABLES = st.lists(
    st.tuples(
        # Who is online: the steps that it does, and by how many rounds its reply is late; or it is lost.
        st.dictionaries(
            st.integers(0, N - 1), st.tuples(st.integers(1, E), st.integers(LOST, 3)), max_size=N
        ),
        st.none() | st.integers(0, N - 1),  # who arrives, or departs if it is there
    ),
    min_size=1,
    max_size=12,
)
CLIENTS = st.integers(0, N - 1)
DEVICE_TABLES = st.lists(
    st.tuples(
        st.dictionaries(CLIENTS, st.integers(1, E), max_size=N),  # who is online, and its steps
        st.sets(CLIENTS),  # whose reply gets lost
        st.sets(CLIENTS, max_size=2),  # who arrives, or departs if it is there
    ),
    min_size=1,
    max_size=10,
)


class Answer(NamedTuple):
    """A reply that counts: its update and steps, the round of its task, and the version of its weights."""

    delta: np.ndarray
    steps: int
    task: int
    version: int


class Federation:
    """Plays a table with a strategy; the attributes are what a definition needs to know besides the answers.

    Attributes
    ----------
    members, gone, joined, left
        Who is in the objective, who has departed, and who entered or left the objective in this round.
    round, rates
        The round, and the clients' rate in each round so far.
    before, version
        Weights before the round, and how often they had changed.
    """

    def __init__(self, name: str, table: Any, departure: str, **options: Any) -> None:
        general = {"local_steps": E, "departure": departure, "lr_schedule": lambda eta, t, *_: eta * 0.9**t}
        self.table, self.departure = table, departure
        self.strategy: Any = make(name, range(N - 1), **general, **options)
        self.rounds = Rounds(self.strategy)
        self.members, self.gone = set(range(N - 1)), set[int]()
        self.joined, self.left, self.rates = list[int](), list[int](), dict[int, float]()
        self.round, self.version, self.max_lag = 0, 0, options.get("max_lag", 99)

    def __iter__(self) -> Iterator[dict[int, Answer]]:
        rounds, under_way = self.rounds, dict[int, tuple[int, Any, Answer]]()
        for there, moved in self.table:
            self.round += 1
            arrived, departed = self._move(moved)
            for client in departed if self.departure == "exclude" else ():
                if client in under_way:  # it still is at work, on what nobody waits for
                    arrival, reply, answer = under_way[client]
                    under_way[client] = arrival, reply, answer._replace(task=0)
            rounds.manager.working = sorted(under_way)
            self.before = self.strategy.weights.copy()
            asked = rounds.ask(set(there) & (self.members - self.gone), arrived, departed)
            assert set(asked) == set(there) & (self.members - self.gone) - set(under_way)
            self.rates[self.round] = self.strategy.learning_rate
            due: dict[int, tuple[Any, Answer]] = {
                client: (reply, answer)
                for client, (at, reply, answer) in under_way.items()
                if at == self.round
            }
            under_way = {client: part for client, part in under_way.items() if part[0] > self.round}
            for client, instruction in asked.items():
                steps, late = there[client]
                steps = min(steps, int(instruction.config["local-steps"]))
                answer = Answer(delta(client, self.round), steps, self.round, self.version)
                reply = work(client, instruction, steps=steps)
                if late > 0:
                    under_way[client] = self.round + late, reply, answer
                elif late == 0:
                    due[client] = reply, answer
            after = rounds.hear(*((client, reply) for client, (reply, _) in due.items()))
            answers = {client: answer for client, (_, answer) in sorted(due.items()) if self._counts(answer)}
            assert self.strategy.report.active.tolist() == [*answers]
            yield answers
            self.version += not np.array_equal(after, self.before)

    def resume(self, strategy: Any) -> None:
        """Continue with another strategy."""
        self.strategy = self.rounds.strategy = strategy
        self.rounds.parameters = strategy.initialize_parameters(self.rounds.manager)

    def _counts(self, answer: Answer) -> bool:
        """Whether somebody waits for this answer, and it is not too old."""
        if answer.task < self.round and not self.strategy.takes_late_replies:
            return False
        return answer.task > 0 and self.version - answer.version <= self.max_lag

    def _move(self, moved: int | None) -> tuple[list[int], list[int]]:
        """Let a client arrive or depart."""
        self.joined, self.left = [], []
        if moved is None:
            return [], []
        if moved in self.members - self.gone:
            self.gone.add(moved)
            if self.departure == "exclude":
                self.members.remove(moved)
                self.left = [moved]
            return [], [moved]
        self.gone.discard(moved)
        if moved not in self.members:
            self.members.add(moved)
            self.joined = [moved]
        return [moved], []

    def shares(self, weights: str = "n") -> dict[int, float]:
        """p_k of the members, 1 / N with `uniform`."""
        sizes = {k: SIZES[k] if weights == "n" else 1 for k in self.members}
        return {k: size / sum(sizes.values()) for k, size in sizes.items()}

    def check(self, expected: np.ndarray, rtol: float = 1e-9, atol: float = 1e-11) -> None:
        """Assert what the weights are after the round."""
        np.testing.assert_allclose(self.strategy.weights, expected, rtol=rtol, atol=atol)


def on_tables(*variants: dict[str, Any]) -> Callable[[Any], Any]:
    """Run a test on random tables, with one of these variants of the method's options."""

    def decorate(test: Any) -> Any:
        departure, options = st.sampled_from(["include", "exclude"]), st.sampled_from(variants)
        random = given(table=TABLES, departure=departure, options=options)
        return settings(max_examples=80, deadline=None, derandomize=True)(random(test))

    return decorate


class Clients:
    """Real clients of a strategy, `silent` if they leave without a farewell."""

    def __init__(self, strategy: Any, device: Callable[[int], Device], silent: bool = False) -> None:
        self.strategy, self.silent = strategy, silent
        self.devices = [device(client) for client in range(N)]
        self.rounds = Rounds(strategy)

    def play(self, table: Any) -> Iterator[dict[int, FitRes]]:
        """Play rounds of `DEVICE_TABLES`; yield the replies that counted in each."""
        for steps, lost, moved in table:
            roster = self.strategy.roster
            there = roster.member & ~roster.departed
            departed = [client for client in sorted(moved) if there[client]]
            arrived = [client for client in sorted(moved) if not there[client]]
            there[list(moved)] ^= True
            online = {client: s for client, s in steps.items() if there[client]}
            asked = self.rounds.ask(online, arrived, departed)
            results = {c: self.devices[c].fit(i, steps.get(c, 1)) for c, i in asked.items()}
            heard = {c for c in asked if c not in lost or c in departed} - set(
                departed if self.silent else []
            )
            self.rounds.hear(*((c, results[c]) for c in sorted(heard, reverse=True)))
            assert self.strategy.report.rejected == []
            yield {client: results[client] for client in self.strategy.report.active.tolist()}

    def work(self, online: Any = range(N), **events: Any) -> dict[int, FitIns]:
        """A round in which all do all of their work; what they were told."""
        asked = self.rounds.ask(online, **events)
        self.rounds.hear(*((c, self.devices[c].fit(i, E)) for c, i in asked.items()))
        return asked

    def kept(self, client: int) -> dict[str, np.ndarray]:
        """What a client would train with, were it asked now."""
        memory, _ = self.devices[client].memory.open(int(self.strategy.roster.accepted[client]))
        return dict(memory.committed)
