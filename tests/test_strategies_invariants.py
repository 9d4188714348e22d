"""Invariants of MIFA, FedLaAvg and MimiC under random participation, arrivals and departures.

Each is held against its definition, client by client.
"""

from typing import Any

import numpy as np
from fakes import SIZES, M, N, Rounds, delta, make, stored, work
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.core.schedules import Geometric

E = 4
ROUNDS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, N - 1), st.integers(1, E), max_size=N),  # s_k of those who reply
        st.none() | st.integers(0, N - 1),  # who arrives, or departs if it is there
    ),
    min_size=1,
    max_size=8,
)
RUNS = {
    "rounds": ROUNDS,
    "departure": st.sampled_from(["include", "exclude"]),
    "in_memory": st.sampled_from([0.0, 1.0]),
}


class Run:
    """Plays a table of rounds; `members` and `rate` are what a definition needs besides the replies."""

    def __init__(self, name: str, rounds: Any, departure: str, in_memory: float, **options: Any) -> None:
        self.table, self.departure = rounds, departure
        schedule = Geometric(factor=0.9)
        general = {"local_steps": E, "departure": departure, "table_memory": in_memory}
        self.strategy: Any = make(name, range(N - 1), lr_schedule=schedule, **general, **options)
        self.members, self.gone = set(range(N - 1)), set[int]()
        self.joined, self.left = list[int](), list[int]()

    def __iter__(self) -> Any:
        """Yield the replies of each round, {client: (delta, s)}; the lists of who joined and left are new."""
        rounds = Rounds(self.strategy)
        for number, (steps, moved) in enumerate(self.table, start=1):
            self.joined, self.left = [], []
            arrived, departed = [], []
            if moved is not None and moved in self.members - self.gone:
                departed = [moved]
                self.gone.add(moved)
                if self.departure == "exclude":
                    self.members.remove(moved)
                    self.left = departed
            elif moved is not None:
                arrived = [moved]
                self.gone.discard(moved)
                if moved not in self.members:
                    self.members.add(moved)
                    self.joined = arrived
            there = {client: s for client, s in steps.items() if client in self.members - self.gone}
            self.before = self.strategy.weights.copy()
            asked = rounds.ask(there, arrived, departed)
            rounds.hear(*((c, work(c, i, steps=there[c])) for c, i in asked.items()))
            self.rate = self.strategy.learning_rate
            yield {client: (delta(client, number), s) for client, s in sorted(there.items())}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    **RUNS, first_round=st.sampled_from(["zeros", "wait", "seen"]), empty=st.sampled_from(["skip", "move"])
)
def test_mifa_is_its_table(first_round: str, empty: str, **table: Any) -> None:
    """Overwrite, keep, drop: w -= eta (1/N) sum G by the table of this moment."""
    run = Run("mifa", **table, first_round=first_round, empty=empty)
    G: dict[int, np.ndarray] = {}
    waiting = first_round == "wait"
    for replies in run:
        for client in run.left:
            G.pop(client, None)
        G |= {client: -d / run.rate * E / s for client, (d, s) in replies.items()}
        waiting = waiting and len(G) < len(run.members)
        expected = run.before.copy()
        if (replies or empty == "move") and not waiting and G:
            expected -= run.rate * sum(G.values()) / (len(G) if first_round == "seen" else len(run.members))
        np.testing.assert_allclose(run.strategy.weights, expected, rtol=1e-9, atol=1e-12)
        assert sorted(run.strategy.latest.clients.tolist()) == sorted(G)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**RUNS, units=st.sampled_from(["gradient", "update"]), empty=st.sampled_from(["skip", "move"]))
def test_fedlaavg_moves_by_the_mean_of_the_latest(units: str, empty: str, **table: Any) -> None:
    """sum / N is the mean of all members' latest updates, 0 for those never seen (Algorithm 2)."""
    run = Run("fedlaavg", **table, units=units, empty=empty)
    u: dict[int, np.ndarray] = {}
    for replies in run:
        for client in run.left:
            u.pop(client, None)
        n = {client: SIZES[client] for client in run.members}
        unit = -1 / run.rate if units == "gradient" else 1.0
        for client, (d, s) in replies.items():
            u[client] = unit * len(n) * n[client] / sum(n.values()) * E / s * d
        mean = sum((u.get(client, np.zeros(M)) for client in run.members), np.zeros(M)) / max(1, len(n))
        moves = bool(replies) or empty == "move"
        expected = run.before + moves * mean / unit
        np.testing.assert_allclose(run.strategy.latest.total / max(1, len(n)), mean, atol=1e-11)
        np.testing.assert_allclose(run.strategy.weights, expected, rtol=1e-9, atol=1e-11)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**RUNS, units=st.sampled_from(["gradient", "update"]), float32=st.booleans())
def test_mimic_corrections_sum_to_zero(units: str, float32: bool, **table: Any) -> None:
    """sum_i c_i = 0 over the members after every round; each c_i is what Algorithm 1 and the handover say."""
    precision: dict[str, Any] = {"table_dtype": "float32"} if float32 else {}
    run = Run("mimic", **table, units=units, **precision)
    close = {"rtol": 1e-5, "atol": 1e-5} if float32 else {"rtol": 1e-9, "atol": 1e-11}
    c = {client: np.zeros(M) for client in range(N - 1)}
    for replies in run:
        for client in run.left:
            handed = c.pop(client)
            c = {other: vector + handed / len(c) for other, vector in c.items()}
        c |= {client: np.zeros(M) for client in run.joined}
        expected = run.before
        if replies:
            ghat = {k: -d if units == "update" else -d / (run.rate * s) for k, (d, s) in replies.items()}
            v = sum(g + c[client] for client, g in ghat.items()) / len(ghat)
            c |= {client: v - g for client, g in ghat.items()}
            expected = run.before - (1 if units == "update" else E * run.rate) * v
        members = np.array(sorted(run.members), np.intp)
        ours = run.strategy.corrections.read(members)
        np.testing.assert_allclose(ours, np.array([c[k] for k in members]).reshape(-1, M), **close)
        np.testing.assert_allclose(ours.sum(axis=0), 0, atol=close["atol"])
        np.testing.assert_allclose(run.strategy.weights, expected, **close)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**RUNS, name=st.sampled_from(["mifa", "fedlaavg", "mimic"]), cut=st.integers(0, 8))
def test_resuming_changes_nothing(name: str, cut: int, **table: Any) -> None:
    """State stored after any round and loaded into a new object, whose table may be elsewhere: same bits."""
    whole, stopped = Run(name, **table), Run(name, **table)
    for number, (_, _) in enumerate(zip(whole, stopped, strict=True)):
        if number == cut:
            fresh = Run(name, **{**table, "in_memory": 1 - table["in_memory"]}).strategy
            fresh.load_state_dict(stored(stopped.strategy.state_dict()))
            stopped.strategy.__dict__.update(fresh.__dict__)  # goes on in the same Run
        np.testing.assert_array_equal(stopped.strategy.weights, whole.strategy.weights)
