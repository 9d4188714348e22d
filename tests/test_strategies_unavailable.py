"""The newer methods against their definitions, client by client, under everything that clients may do.

Random participation with incomplete work, replies that are lost or late, arrivals and departures.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes import SIZES, M, N, Rounds, delta, make, stored, work
from hypothesis import given, settings
from hypothesis import strategies as st

E = 4
LOST = -1


class Answer(NamedTuple):
    """A reply that counts: its update and steps, the round of its task, and the version of its weights."""

    delta: np.ndarray
    steps: int
    task: int
    version: int


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


class Federation:
    """Plays a table with a strategy; the attributes are what a definition needs to know besides the answers.

    Attributes
    ----------
    members, joined, left
        Who is in the objective, and who entered or left it in this round.
    round, rates
        The round, and the clients' rate in each round so far.
    before, version
        Weights before the round, and how often they had changed.
    """

    def __init__(self, name: str, table: Any, departure: str, **options: Any) -> None:
        general = {"local_steps": E, "departure": departure, "lr_schedule": lambda eta, t, *_: eta * 0.9**t}
        self.table, self.departure = table, departure
        self.strategy: Any = make(name, range(N - 1), **general, **options)
        self.members, self.gone = set(range(N - 1)), set[int]()
        self.joined, self.left, self.rates = list[int](), list[int](), dict[int, float]()
        self.round, self.version, self.max_lag = 0, 0, options.get("max_lag", 99)

    def __iter__(self) -> Iterator[dict[int, Answer]]:
        rounds = Rounds(self.strategy)
        under_way: dict[int, tuple[int, Any, Answer]] = {}
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
                answer = Answer(delta(client, self.round), steps, self.round, self.version)
                reply = work(client, instruction, steps=steps)
                if late > 0:
                    under_way[client] = self.round + late, reply, answer
                elif late == 0:
                    due[client] = reply, answer
            after = rounds.hear(*((client, reply) for client, (reply, _) in due.items()))
            yield {client: answer for client, (_, answer) in sorted(due.items()) if self._counts(answer)}
            self.version += not np.array_equal(after, self.before)

    def _counts(self, answer: Answer) -> bool:
        """Whether somebody waits for this answer, and it is not too old."""
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

    def shares(self) -> dict[int, float]:
        """p_k of the members."""
        total = sum(SIZES[k] for k in self.members)
        return {k: SIZES[k] / total for k in self.members}


def check(*variants: dict[str, Any]) -> Callable[[Any], Any]:
    """Run a test on random tables, with one of these variants of the method's options."""

    def decorate(test: Any) -> Any:
        random = given(
            table=TABLES,
            departure=st.sampled_from(["include", "exclude"]),
            options=st.sampled_from(variants or ({},)),
        )
        return settings(max_examples=80, deadline=None, derandomize=True)(random(test))

    return decorate


@check({}, {"cutoff": 3}, {"cutoff": 0, "weights": "uniform"}, {"normalize": False})
def test_fedau(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Algorithm 2 round by round; M_k omega_k + S_k is the number of rounds as a member."""
    federation = Federation("fedau", table, departure, **options)
    cutoff = options.get("cutoff", 50)
    omega, ended, since, age = (dict.fromkeys(range(N), first) for first in (1.0, 0, 0, 0))
    for answers in federation:
        for client in federation.joined:
            omega[client], ended[client], since[client], age[client] = 1.0, 0, 0, 0
        p = federation.shares()
        step = np.zeros(M)
        for k, answer in answers.items():
            weight = p[k] if options.get("weights") != "uniform" else 1 / len(federation.members)
            work_done = E / answer.steps if options.get("normalize", True) else 1
            step += weight * omega[k] * work_done * answer.delta
        np.testing.assert_allclose(
            federation.strategy.weights, federation.before + step, rtol=1e-9, atol=1e-12
        )
        for k in federation.members:
            since[k] += 1
            age[k] += 1
            if k in answers or since[k] == cutoff:
                omega[k] = since[k] if not ended[k] else (ended[k] * omega[k] + since[k]) / (ended[k] + 1)
                ended[k], since[k] = ended[k] + 1, 0
            assert ended[k] * omega[k] * (ended[k] > 0) + since[k] == pytest.approx(age[k])


@check({}, {"units": "update"}, {"beta": 0.5, "agg": "prob", "units": "update"}, {"weights": "uniform"})
def test_fedvarp(table: Any, departure: str, options: dict[str, Any]) -> None:
    """v from the old table; rows replaced afterwards, in gradients by the rate of their task."""
    federation = Federation("fedvarp", table, departure, **options)
    y: dict[int, np.ndarray] = {}
    omega = np.ones(N)
    for answers in federation:
        omega[federation.joined] = 1
        for client in federation.left:
            y.pop(client, None)
        members = federation.members
        p = (
            federation.shares()
            if options.get("weights") != "uniform"
            else dict.fromkeys(members, 1 / max(1, len(members)))
        )
        beta, rates, t = options.get("beta", 1.0), federation.rates, federation.round
        gradient = options.get("units", "gradient") == "gradient"
        u = {k: a.delta * E / a.steps / (-rates[a.task] if gradient else 1) for k, a in answers.items()}
        expected = federation.before
        if answers:
            weights = p
            if options.get("agg") == "prob":
                weights = {k: p[k] * omega[k] for k in answers}
            total = sum(p[k] for k in answers) if options.get("agg", "mean") == "mean" else 1.0
            zero = np.zeros(M)
            v = beta * sum((p[k] * y.get(k, zero) for k in members), zero)
            v = v + sum(weights[k] / total * (u[k] - beta * y.get(k, zero)) for k in answers)
            expected = federation.before + (-rates[t] if gradient else 1) * v
        np.testing.assert_allclose(federation.strategy.weights, expected, rtol=1e-9, atol=1e-12)
        y |= u
        omega = federation.strategy.intervals.means(np.arange(N), t + 1)  # by definition in test_fedau


@check(
    {},
    {"buffer": 3},
    {"buffer": 4, "weights": "n", "renorm": True},
    {"buffer": 2, "max_lag": 1},
    {"normalize": True},
)
def test_fedbuff(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Everything that waits, discounted by the lag that it had when it arrived."""
    federation = Federation("fedbuff", table, departure, **options)
    buffer: list[tuple[int, float, float, np.ndarray]] = []
    for answers in federation:
        buffer = [part for part in buffer if part[0] not in federation.left]
        for k, answer in answers.items():
            q = SIZES[k] if options.get("weights") == "n" else 1
            done = E / answer.steps if options.get("normalize") else 1
            lag = federation.version - answer.version
            buffer.append((k, q, (1 + lag) ** -0.5, done * answer.delta))
        assert federation.strategy.report.active.tolist() == [*answers]
        step = np.zeros(M)
        if answers and len(buffer) >= options.get("buffer", 1):
            total = sum(q * (discount if options.get("renorm") else 1) for _, q, discount, _ in buffer)
            step = sum((q / total * discount * d for _, q, discount, d in buffer), step)
            buffer = []
        assert federation.strategy.buffer.clients.tolist() == [k for k, *_ in buffer]
        np.testing.assert_allclose(
            federation.strategy.weights, federation.before + step, rtol=1e-9, atol=1e-12
        )


@check({}, {"evaluate": "newest"}, {"weights": "n", "normalize": True}, {"clip": 0.5})
def test_fedawe(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Each member's x_k and T_k; the mean of all x_k moves by the echoes over N (double stochasticity)."""
    federation = Federation("fedawe", table, departure, **options)
    start = federation.strategy.weights.copy()
    x = dict.fromkeys(federation.members, start)
    T, echoes, newest = dict.fromkeys(federation.members, 0), dict.fromkeys(federation.members, 0), start
    for answers in federation:
        t, strategy = federation.round, federation.strategy
        for client in federation.left:
            del x[client], T[client], echoes[client]
        for client in federation.joined:
            x[client], T[client], echoes[client] = newest, t - 1, t - 1
        p = federation.shares()
        if answers:
            echo = {k: (t - T[k]) * a.delta for k, a in answers.items()}
            if options.get("weights") == "n":
                echo = {k: len(p) * p[k] * E / answers[k].steps * d for k, d in echo.items()}
            mean = sum(echo.values()) / len(answers)
            if "clip" in options:
                mean = mean * min(1, options["clip"] / np.linalg.norm(mean))
            xbar = sum(x.values()) / len(x)
            newest = sum(x[k] for k in answers) / len(answers) + mean
            for k in answers:
                echoes[k] += t - T[k]
                x[k], T[k] = newest, t
                assert echoes[k] == T[k]  # Proposition 1
            moved = sum(x.values()) / len(x) - xbar
            np.testing.assert_allclose(moved, len(answers) / len(x) * mean, rtol=1e-9, atol=1e-12)
            expected = newest if options.get("evaluate") == "newest" else sum(x.values()) / len(x)
            np.testing.assert_allclose(strategy.weights, expected, rtol=1e-9, atol=1e-12)
        for k in federation.members:
            np.testing.assert_allclose(strategy.task(k).weights.vector, x[k], rtol=1e-9, atol=1e-12)
        assert len(strategy.models) <= len({*T.values(), t, 0})


@check({"rate_memory": 0.2}, {"rate_memory": 1.0})
def test_f3ast_rates(table: Any, departure: str, options: dict[str, Any]) -> None:
    """r_k falls in every round and rises with every accepted reply."""
    federation = Federation("f3ast", table, departure, **options)
    b = options["rate_memory"]
    r = dict.fromkeys(federation.members, 1.0)
    for answers in federation:
        r |= dict.fromkeys(federation.joined, 1.0)
        r = {k: (1 - b) * r[k] + b * (k in answers) for k in federation.members}
        found = federation.strategy.rate(np.arange(N))
        np.testing.assert_allclose([found[k] for k in sorted(r)], [r[k] for k in sorted(r)], rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["fedau", "fedvarp", "fedstale", "fedawe", "f3ast", "fedbuff", "mifa", "fedlaavg"]
)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=TABLES, departure=st.sampled_from(["include", "exclude"]), after=st.integers(0, 11))
def test_state_is_all_that_matters(name: str, table: Any, departure: str, after: int) -> None:
    """A strategy that is saved and loaded between two rounds goes on as if nothing had happened."""
    whole, stopped = Federation(name, table, departure), Federation(name, table, departure)
    for _ in whole:
        pass
    for _ in stopped:
        if stopped.round == min(after, len(table)):
            fresh = Federation(name, table, departure).strategy
            fresh.load_state_dict(stored(stopped.strategy.state_dict()))
            for attribute in ("weights", "version"):
                np.testing.assert_array_equal(getattr(fresh, attribute), getattr(stopped.strategy, attribute))
            stopped.strategy.load_state_dict(stored(fresh.state_dict()))
    np.testing.assert_array_equal(stopped.strategy.weights, whole.strategy.weights)
