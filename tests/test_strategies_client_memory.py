"""MimiC, FedLaAvg and FOCUS with the memory at the clients: as with it at the server, in spite of losses.

The clients are the real rules with the real memory on quadratics, in float64.
"""

from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import SIZES, START, M, N, NamedProxy, make
from flwr.common import Code, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import DEVICE_TABLES, Clients, E

import strategies
from strategies.core.options import Geometric

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("mimic", {}),
    ("mimic", {"units": "update"}),
    ("mimic", {"rate": "paper", "warm_up": True, "clients_per_round": 2}),
    ("fedlaavg", {"empty": "move"}),
    ("fedlaavg", {"units": "update", "normalize": False, "clients_per_round": 2}),
    ("fedlaavg", {"weights": "loss"}),
    ("fedlaavg", {"weights": "none"}),
    ("focus", {"empty": "move"}),
    ("focus", {"gradient": "last", "scale": "members", "weights": "uniform"}),
]


def device(client: int) -> Device:
    """A client with an objective of its own."""
    rng = np.random.default_rng(client)
    curvature, optimum = rng.uniform(0.2, 2, M), rng.normal(size=M)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum))


def begin(name: str, members: Any = range(N), silent: bool = False, **options: Any) -> Clients:
    options = {"local_steps": E, "memory": "client", **options}
    return Clients(make(name, members, **options), device, silent)


def remembered(clients: Clients, client: int) -> np.ndarray:
    return next(iter(clients.kept(client).values()), np.zeros(M))


def corrections(clients: Clients) -> np.ndarray:
    """c_i of the members, of what the client knows and what the server does, 0 for other clients."""
    strategy = clients.strategy
    members = np.flatnonzero(strategy.roster.member)
    last, b_of_new = strategy.roster.accepted[members], strategy.corrections.table
    b = np.where(last[:, None] > 0, strategy.v_by_round.read(last), b_of_new.read(members))
    c = np.zeros((N, M))
    c[members] = b + strategy.corrections.handed_over
    c[members] -= np.array([remembered(clients, k) for k in members.tolist()]).reshape(-1, M)
    return c


def farewells(clients: Clients) -> dict[int, bool]:
    """Who was asked for a farewell in this round, and whether it came."""
    events = clients.strategy.report.events
    return {e["client"]: e["received"] for e in events if e["event"] == "farewell"}


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize(("name", "own"), OPTIONS, ids=str)
@given(table=DEVICE_TABLES, departure=st.sampled_from(["include", "exclude"]))
def test_both_memories_give_the_same_weights(name: str, own: Any, table: Any, departure: str) -> None:
    """Over lost replies, arrivals and departures, clients that return among them."""
    options = {**own, "departure": departure, "lr_schedule": Geometric(factor=0.9)}
    server, client = (begin(name, range(N - 1), memory=memory, **options) for memory in ("server", "client"))
    for at_server, at_client in zip(server.play(table), client.play(table), strict=True):
        assert [*at_server] == [*at_client]
        np.testing.assert_allclose(client.strategy.weights, server.strategy.weights, rtol=1e-9, atol=1e-12)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(table=DEVICE_TABLES, silent=st.booleans(), in_memory=st.sampled_from([0.0, 1.0]))
def test_mimics_corrections_sum_to_zero(table: Any, silent: bool, in_memory: float) -> None:
    """Less the c_l of those that left without a word; the server keeps no more v than there are members."""
    mimic = begin("mimic", range(N - 1), silent, table_memory=in_memory)
    left, before = np.zeros(M), np.zeros((N, M))
    for active in mimic.play(table):
        left += before[[client for client, received in farewells(mimic).items() if not received]].sum(axis=0)
        before = corrections(mimic)
        np.testing.assert_allclose(before.sum(axis=0), -left, atol=1e-10)
        assert not active or len(mimic.strategy.v_by_round) <= mimic.strategy.roster.num_members


@settings(max_examples=60, deadline=None, derandomize=True)
@given(table=DEVICE_TABLES, silent=st.booleans())
def test_fedlaavg_moves_by_the_mean_of_the_latest(table: Any, silent: bool) -> None:
    """The sum is that of what the members remember, and of what those left who went without a word."""
    fedlaavg = begin("fedlaavg", range(N - 1), silent)
    strategy = fedlaavg.strategy
    orphans: list[np.ndarray] = []
    before = [np.zeros(M)] * N
    for _ in fedlaavg.play(table):
        left = farewells(fedlaavg)
        assert all(received is not silent for received in left.values())
        orphans += [before[client] for client in left if silent]
        before = [remembered(fedlaavg, client) for client in range(N)]
        total = sum([before[k] for k in np.flatnonzero(strategy.roster.member)] + orphans, np.zeros(M))
        np.testing.assert_allclose(strategy.latest.total, total, atol=1e-10)
        assert strategy.orphans == len(orphans)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(table=DEVICE_TABLES, silent=st.booleans(), uniform=st.booleans())
def test_focus_moves_by_the_gradients_of_all(table: Any, silent: bool, uniform: bool) -> None:
    """The sum is that of what the members remember, and of what those left who went without a word."""
    focus = begin("focus", range(N - 1), silent, weights="uniform" if uniform else "n")
    strategy = focus.strategy
    before, orphans, size = [np.zeros(M)] * N, np.zeros(M), 0.0
    for _ in focus.play(table):
        left = farewells(focus) if silent else {}
        orphans = sum((before[client] for client in left), orphans)
        size += sum(1 if uniform else SIZES[client] for client in left)
        before = [remembered(focus, client) for client in range(N)]
        total = sum((before[k] for k in np.flatnonzero(strategy.roster.member)), orphans)
        np.testing.assert_allclose(strategy.latest.total, total, atol=1e-9)
        assert strategy.orphans == size


# The messages


@pytest.mark.parametrize("name", ["mimic", "fedlaavg", "focus"])
def test_farewell_is_one_message_without_work(name: str) -> None:
    """To a client that contributed; the round counts it neither as asked to train nor as active."""
    clients = begin(name)
    clients.work(range(N - 1))
    asked = clients.work(departed=[1, N - 1])
    assert sorted(asked) == [0, 1, 2, 3]  # the last one never was there
    assert asked[1].config["farewell"] is True
    assert clients.strategy.selected.tolist() == clients.strategy.report.active.tolist() == [0, 2, 3]
    assert farewells(clients) == {1: True}
    (memory,) = clients.devices[1].memory.pending.values()
    np.testing.assert_array_equal(clients.devices[1].sent[0], memory)
    assert 1 not in clients.rounds.ask(range(N))


@pytest.mark.parametrize("name", ["mimic", "fedlaavg", "focus"])
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


@pytest.mark.parametrize("name", ["mimic", "fedlaavg", "focus"])
@pytest.mark.parametrize("kind", ["late", "weights", "forgotten", "failed", "infinite"])
def test_farewells_that_do_not_count(name: str, kind: str) -> None:
    """They are named, and the client has left without a word."""
    clients = begin(name)
    clients.work()
    asked = clients.rounds.ask(range(N), departed=[1])
    result = (device(1) if kind == "forgotten" else clients.devices[1]).fit(asked[1], E)
    if kind == "late":
        result.metrics["round"] = 1
    elif kind == "weights":
        result.parameters = ndarrays_to_parameters(START)
    elif kind == "infinite":
        result.parameters = ndarrays_to_parameters([np.full(M, np.inf)])
    elif kind == "failed":
        result.status = Status(Code.FIT_NOT_IMPLEMENTED, "no")
    clients.rounds.hear((1, result))
    assert [client for client, _ in clients.strategy.report.rejected] == ["1"]
    assert farewells(clients) == {1: False}


@pytest.mark.parametrize("name", ["mimic", "fedlaavg", "focus"])
def test_plain_weights_are_refused(name: str) -> None:
    clients = begin(name)
    result = clients.devices[0].fit(clients.rounds.ask([0])[0], E)
    result.parameters = ndarrays_to_parameters(START)
    before = clients.strategy.weights.copy()
    np.testing.assert_array_equal(clients.rounds.hear((0, result)), before)
    ((_, reason),) = clients.strategy.report.rejected
    assert reason.endswith("memory=client needs the clients of fedtide")


# Clients that lost their memory


def test_fedlaavg_keeps_what_a_client_forgot_as_that_of_a_departed_one() -> None:
    fedlaavg = begin("fedlaavg", weights="none")
    fedlaavg.work()
    forgotten = remembered(fedlaavg, 2)
    fedlaavg.devices[2] = device(2)
    for _ in range(2):
        fedlaavg.work()
        assert fedlaavg.strategy.orphans == 1
        now = sum(remembered(fedlaavg, client) for client in range(N))
        np.testing.assert_allclose(fedlaavg.strategy.latest.total, now + forgotten, atol=1e-12)


def test_focus_keeps_what_a_client_forgot_as_that_of_a_departed_one() -> None:
    focus = begin("focus")
    focus.work()
    forgotten = remembered(focus, 2)
    focus.devices[2] = device(2)
    for _ in range(2):
        focus.work()
        assert focus.strategy.orphans == SIZES[2]
        now = sum(remembered(focus, client) for client in range(N))
        np.testing.assert_allclose(focus.strategy.latest.total, now + forgotten, atol=1e-10)


def test_mimic_continues_with_a_client_that_forgot() -> None:
    """c_i = 0 breaks the sum by -c_i, once."""
    mimic = begin("mimic")
    mimic.work()
    c = corrections(mimic)[2]
    mimic.devices[2] = device(2)
    for _ in range(3):
        mimic.work()
        np.testing.assert_allclose(corrections(mimic).sum(axis=0), -c, atol=1e-12)


def test_mimic_starts_a_client_anew_that_forgot_after_a_departure() -> None:
    """Its c_i is 0, not what the departed client passed on."""
    mimic = begin("mimic")
    mimic.work()
    mimic.work(departed=[0])
    assert np.abs(mimic.strategy.corrections.handed_over).max() > 0.01
    mimic.devices[2] = device(2)
    before = mimic.strategy.weights.copy()
    mimic.work([2])
    update = mimic.devices[2].sent[0]  # ghat of its new work, with c = 0
    np.testing.assert_allclose(mimic.strategy.weights, before - 0.1 * E * update, rtol=1e-12)
