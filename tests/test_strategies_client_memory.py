"""MimiC and FedLaAvg with the memory at the clients: as with the memory at the server, in spite of losses.

The clients are the real rules with the real memory on quadratics, in float64.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import SIZES, START, M, N, NamedProxy, Rounds, make, stored
from flwr.common import ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from strategies.core.schedules import Geometric

E = 4
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("mimic", {}),
    ("mimic", {"units": "update"}),
    ("mimic", {"rate": "paper", "warm_up": True, "clients_per_round": 2}),
    ("fedlaavg", {"empty": "move"}),
    ("fedlaavg", {"units": "update", "normalize": False, "clients_per_round": 2}),
    ("fedlaavg", {"weights": "loss"}),
    ("fedlaavg", {"weights": "none"}),
]
TABLE = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, N - 1), st.integers(1, E), max_size=N),  # who is there, and its s_k
        st.sets(st.integers(0, N - 1)),  # whose reply gets lost
        st.sets(st.integers(0, N - 1), max_size=2),  # who arrives, or departs if it is there
    ),
    min_size=1,
    max_size=10,
)


def device(client: int) -> Device:
    """A client with an objective of its own."""
    rng = np.random.default_rng(client)
    curvature, optimum = rng.uniform(0.2, 2, M), rng.normal(size=M)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum))


class Run:
    """Plays a table; yields the clients whose replies counted."""

    def __init__(self, name: str, table: Any, silent: bool = False, **options: Any) -> None:
        self.table, self.silent = table, silent  # silent: who leaves does so without a word
        general: dict[str, Any] = {"local_steps": E, "lr_schedule": Geometric(factor=0.9)}
        self.strategy: Any = make(name, range(N - 1), **general, **options)
        self.devices = [device(client) for client in range(N)]
        self.rounds = Rounds(self.strategy)

    def __iter__(self) -> Iterator[list[int]]:
        member = np.arange(N) < N - 1
        for steps, lost, moved in self.table:
            self.departed = [client for client in sorted(moved) if member[client]]
            arrived = [client for client in sorted(moved) if not member[client]]
            member[list(moved)] ^= True
            there = [client for client in steps if member[client]]
            asked = self.rounds.ask(there, arrived, self.departed)
            results = {c: self.devices[c].fit(i, steps.get(c, 1)) for c, i in asked.items()}
            heard = {c for c in asked if c not in lost or c in self.departed}
            if self.silent:
                heard -= set(self.departed)
            self.rounds.hear(*((c, results[c]) for c in sorted(heard, reverse=True)))
            assert self.strategy.report.rejected == []
            yield self.strategy.report.active.tolist()

    def remembered(self, client: int) -> Any:
        """What the client would train from, were it asked now."""
        accepted = int(self.strategy.roster.accepted[client])
        memory, _ = self.devices[client].memory.open(accepted)
        return next(iter(memory.committed.values())) if memory.committed else np.zeros(M)

    def corrections(self) -> np.ndarray:
        """c_i of all members: what the client knows, and what the server does."""
        strategy = self.strategy
        members = np.flatnonzero(strategy.roster.member)
        last, b_of_new = strategy.roster.accepted[members], strategy.corrections.table
        b = np.where(last[:, None] > 0, strategy.v_by_round.read(last), b_of_new.read(members))
        b = b + strategy.corrections.handed_over
        return b - np.array([self.remembered(k) for k in members.tolist()]).reshape(-1, M)


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize(("name", "own"), OPTIONS, ids=str)
@given(table=TABLE, departure=st.sampled_from(["include", "exclude"]))
def test_both_memories_give_the_same_weights(name: str, own: Any, table: Any, departure: str) -> None:
    """Over lost replies, arrivals and departures, clients that return among them."""
    server, client = (
        Run(name, table, departure=departure, memory=memory, **own) for memory in ("server", "client")
    )
    for at_server, at_client in zip(server, client, strict=True):
        assert at_server == at_client
        np.testing.assert_allclose(client.strategy.weights, server.strategy.weights, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(table=TABLE, in_memory=st.sampled_from([0.0, 1.0]))
def test_mimics_corrections_sum_to_zero(table: Any, in_memory: float) -> None:
    """Of the members, after every round; and the server keeps no more v than there are members."""
    run = Run("mimic", table, memory="client", table_memory=in_memory)
    for _ in run:
        np.testing.assert_allclose(run.corrections().sum(axis=0), 0, atol=1e-10)
        if len(run.strategy.report.active):
            assert len(run.strategy.v_by_round) <= run.strategy.roster.num_members


@settings(max_examples=60, deadline=None, derandomize=True)
@given(table=TABLE)
def test_mimic_after_departures_without_a_word(table: Any) -> None:
    """The sum of the others is -c_l from then on, of each that left so, no more and no less."""
    run = Run("mimic", table, memory="client", silent=True)
    left, before = np.zeros(M), np.zeros((N, M))
    for _ in run:
        told = [event["client"] for event in run.strategy.report.events if event["event"] == "farewell"]
        left += before[told].sum(axis=0)
        np.testing.assert_allclose(run.corrections().sum(axis=0), -left, atol=1e-10)
        before = np.zeros((N, M))
        before[np.flatnonzero(run.strategy.roster.member)] = run.corrections()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(table=TABLE, silent=st.booleans())
def test_fedlaavg_moves_by_the_mean_of_the_latest(table: Any, silent: bool) -> None:
    """The sum is that of what the members remember, and of what those left who went without a word."""
    run = Run("fedlaavg", table, memory="client", silent=silent)
    orphans: list[np.ndarray] = []
    before = [np.zeros(M)] * N
    for _ in run:
        told = [event for event in run.strategy.report.events if event["event"] == "farewell"]
        assert all(event["received"] is not silent for event in told)
        orphans += [before[event["client"]] for event in told if silent]
        before = [run.remembered(client) for client in range(N)]
        members = np.flatnonzero(run.strategy.roster.member)
        total = sum([before[k] for k in members.tolist()] + orphans, np.zeros(M))
        np.testing.assert_allclose(run.strategy.latest.total, total, atol=1e-10)
        assert run.strategy.orphans == len(orphans)


# The messages


def begin(name: str, **own: Any) -> tuple[Rounds, list[Device]]:
    return Rounds(make(name, memory="client", local_steps=E, **own)), [device(k) for k in range(N)]


def play(rounds: Rounds, devices: list[Device], online: Any = range(N), **events: Any) -> dict[int, Any]:
    asked = rounds.ask(online, **events)
    rounds.hear(*((c, devices[c].fit(i, E)) for c, i in asked.items()))
    return asked


def test_mimic_sends_one_v_to_all_who_were_last_there_in_a_round() -> None:
    """Nothing the first time; the server holds two of them after clients were there in two."""
    rounds, devices = begin("mimic")
    assert all(not i.parameters.extra for i in play(rounds, devices).values())
    play(rounds, devices, [0, 1])
    asked = rounds.ask(range(N))
    assert len({id(asked[k].parameters.extra[0]) for k in (0, 1)}) == 1
    assert len({id(asked[k].parameters.extra[0]) for k in (2, 3, 4)}) == 1
    assert asked[0].parameters.extra[0].shape == (M,)
    assert sorted(rounds.strategy.v_by_round.clients.tolist()) == [1, 2]
    rounds.hear(*((c, devices[c].fit(i, E)) for c, i in asked.items()))
    assert len(rounds.strategy.v_by_round) == 1


@pytest.mark.parametrize("name", ["mimic", "fedlaavg"])
def test_farewell_is_one_message_without_work(name: str) -> None:
    """To a client that contributed; the round counts it neither as asked to train nor as active."""
    rounds, devices = begin(name)
    play(rounds, devices, range(N - 1))
    asked = rounds.ask(range(N), departed=[1, N - 1])
    assert sorted(asked) == [0, 1, 2, 3]  # the last one never was there
    assert asked[1].config["farewell"] is True
    assert rounds.strategy.selected.tolist() == [0, 2, 3]
    rounds.hear(*((c, devices[c].fit(i, E)) for c, i in asked.items()))
    assert rounds.strategy.report.active.tolist() == [0, 2, 3]
    assert {"event": "farewell", "client": 1, "received": True} in rounds.strategy.report.events
    np.testing.assert_array_equal(devices[1].sent[0], next(iter(devices[1].memory.pending.values())))
    assert 1 not in rounds.ask(range(N))


@pytest.mark.parametrize("name", ["mimic", "fedlaavg"])
def test_farewell_to_flowers_clients_that_say_so(name: str) -> None:
    """Under a stock client manager: one that still is there is asked, one that is not is let go."""
    strategy: Any = strategies.make(name, ndarrays_to_parameters(START), memory="client", local_steps=E)
    manager, devices = SimpleClientManager(), {key: device(k) for k, key in enumerate("abc")}
    for key in devices:
        manager.register(NamedProxy(key))
    parameters = strategy.initialize_parameters(manager)
    asked: list[list[str]] = []
    for number in range(1, 5):
        results = []
        instructions = strategy.configure_fit(number, parameters, manager)
        asked.append([proxy.cid for proxy, _ in instructions])
        for proxy, instruction in instructions:
            result = devices[proxy.cid].fit(instruction, E)
            result.metrics["departing"] = number == 1 and proxy.cid in "ab"
            results.append((proxy, result))
        parameters, _ = strategy.aggregate_fit(number, results, [])
        if number == 1:
            manager.unregister(NamedProxy("a"))
        received = {e["client"]: e["received"] for e in strategy.report.events if e["event"] == "farewell"}
        assert received == ({0: False, 1: True} if number == 2 else {})
    assert asked == [["a", "b", "c"], ["c", "b"], ["c"], ["c"]]


@pytest.mark.parametrize("name", ["mimic", "fedlaavg"])
@pytest.mark.parametrize("kind", ["late", "weights", "forgotten", "failed", "infinite"])
def test_farewells_that_do_not_count(name: str, kind: str) -> None:
    """They are named, and the client has left without a word."""
    rounds, devices = begin(name)
    play(rounds, devices)
    asked = rounds.ask(range(N), departed=[1])
    if kind == "forgotten":
        devices[1] = device(1)
    result = devices[1].fit(asked[1], E)
    if kind == "late":
        result.metrics["round"] = 1
    elif kind == "weights":
        result.parameters = ndarrays_to_parameters(START)
    elif kind == "infinite":
        result.parameters = ndarrays_to_parameters([np.full(M, np.inf)])
    elif kind == "failed":
        result.status.message, result.status.code = "no", type(result.status.code).FIT_NOT_IMPLEMENTED
    rounds.hear((1, result))
    assert [client for client, _ in rounds.strategy.report.rejected] == ["1"]
    assert {"event": "farewell", "client": 1, "received": False} in rounds.strategy.report.events


@pytest.mark.parametrize("name", ["mimic", "fedlaavg"])
def test_plain_weights_are_refused(name: str) -> None:
    rounds, devices = begin(name)
    asked = rounds.ask([0])
    result = devices[0].fit(asked[0], E)
    result.parameters = ndarrays_to_parameters(START)
    before = rounds.strategy.weights.copy()
    np.testing.assert_array_equal(rounds.hear((0, result)), before)
    ((_, reason),) = rounds.strategy.report.rejected
    assert reason.endswith("memory=client needs the clients of flexfl")


# Clients that lost their memory


def test_fedlaavg_keeps_what_a_client_forgot_as_that_of_a_departed_one() -> None:
    rounds, devices = begin("fedlaavg", weights="none")
    play(rounds, devices)
    forgotten = next(iter(devices[2].memory.pending.values()))
    devices[2] = device(2)
    play(rounds, devices)
    strategy: Any = rounds.strategy
    assert strategy.orphans == 1
    now = sum(next(iter(d.memory.pending.values())) for d in devices)
    np.testing.assert_allclose(strategy.latest.total, now + forgotten, atol=1e-12)
    play(rounds, devices)
    assert strategy.orphans == 1


def test_mimic_goes_on_with_a_client_that_forgot() -> None:
    """c_i = 0 breaks the sum by -c_i, once."""
    rounds, devices = begin("mimic")
    run = Run("mimic", [])
    run.strategy, run.devices = rounds.strategy, devices
    play(rounds, devices)
    (c,) = run.corrections()[[2]]
    devices[2] = device(2)
    for _ in range(3):
        play(rounds, devices)
        np.testing.assert_allclose(run.corrections().sum(axis=0), -c, atol=1e-12)


def test_mimic_starts_a_client_anew_that_forgot_after_a_departure() -> None:
    """Its c_i is 0, not what the departed client passed on."""
    rounds, devices = begin("mimic")
    play(rounds, devices)
    play(rounds, devices, departed=[0])
    assert np.abs(rounds.strategy.corrections.handed_over).max() > 0.01  # type: ignore[attr-defined]
    devices[2] = device(2)
    before = rounds.strategy.weights.copy()
    after = play_alone(rounds, devices, 2)
    update = devices[2].sent[0]  # ghat of its new work, with c = 0
    np.testing.assert_allclose(after, before - 0.1 * E * update, rtol=1e-12)


def play_alone(rounds: Rounds, devices: list[Device], client: int) -> np.ndarray:
    play(rounds, devices, [client])
    return rounds.strategy.weights.copy()


# State, options


@settings(max_examples=30, deadline=None, derandomize=True)
@given(table=TABLE, name=st.sampled_from(["mimic", "fedlaavg"]), cut=st.integers(0, 9))
def test_resuming_changes_nothing(table: Any, name: str, cut: int) -> None:
    whole, stopped = (Run(name, table, memory="client") for _ in range(2))
    for number, _ in enumerate(zip(whole, stopped, strict=True)):
        if number == cut:
            fresh = Run(name, [], memory="client").strategy
            fresh.load_state_dict(stored(stopped.strategy.state_dict()))
            stopped.strategy = stopped.rounds.strategy = fresh
            stopped.rounds.parameters = fresh.initialize_parameters(stopped.rounds.manager)
        np.testing.assert_array_equal(stopped.strategy.weights, whole.strategy.weights)


def test_fedlaavg_cannot_scale_work_that_differs_by_client() -> None:
    with pytest.raises(ValueError, match=r"^memory is 'client' with local-epochs.*; set normalize=false"):
        make("fedlaavg", memory="client", local_epochs=1)
    make("fedlaavg", memory="client", local_epochs=1, normalize=False)
    make("mimic", memory="client", local_epochs=1)
