"""FOCUS: the limit is the optimum, whoever takes part and however many steps they do.

By definition: test_strategies_definitions.py; memory at the clients: test_strategies_client_memory.py.
"""

from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import SIZES, M, N, make
from hypothesis import given, settings
from tables import DEVICE_TABLES, Clients

PROBABILITIES = np.linspace(0.15, 0.9, N)


def problem(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and optimum of a client's quadratic."""
    rng = np.random.default_rng(client)
    return rng.uniform(0.5, 2, M), rng.normal(size=M)


def device(client: int) -> Device:
    curvature, optimum = problem(client)
    return Device(int(SIZES[client]), lambda at: curvature * (at - optimum))


def best(sizes: Any) -> np.ndarray:
    """The optimum of clients with these weights."""
    curvatures, optima = (np.array(part) for part in zip(*map(problem, range(N)), strict=True))
    return (sizes @ (curvatures * optima)) / (sizes @ curvatures)


def table(seed: int, rounds: int) -> Any:
    """Unequal participation, and 1 to 5 steps."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        there = np.flatnonzero(rng.random(N) < PROBABILITIES).tolist()
        yield {client: int(rng.integers(1, 6)) for client in there}, (), ()


@pytest.mark.parametrize(
    ("name", "options", "exact"),
    [
        ("focus", {}, True),
        ("focus", {"gradient": "last", "memory": "client"}, True),
        ("focus", {"gradient": "last", "scale": "members", "weights": "uniform"}, True),
        ("mifa", {}, False),
        ("fedau", {}, False),
    ],
)
def test_the_limit_is_the_optimum(name: str, options: Any, exact: bool) -> None:
    """MIFA's is not with several steps, FedAU's not at a constant rate."""
    sizes = np.ones(N) if name == "mifa" or options.get("weights") == "uniform" else SIZES
    clients = Clients(make(name, local_steps=5, learning_rate=0.03, **options), device)
    for _ in clients.play(table(0, 400)):
        far = np.abs(clients.strategy.weights - best(sizes)).max()
    assert far < 1e-9 if exact else far > 1e-3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(DEVICE_TABLES)
def test_with_one_step_it_is_mifa(moves: Any) -> None:
    """All steps are the same then, whatever they are corrected by."""
    moves = [(dict.fromkeys(there, 1), lost, moved) for there, lost, moved in moves]
    names = ("focus", {"weights": "uniform"}), ("mifa", {})
    focus, mifa = (Clients(make(n, range(N - 1), local_steps=1, **own), device) for n, own in names)
    for _ in zip(focus.play(moves), mifa.play(moves), strict=True):
        np.testing.assert_allclose(focus.strategy.weights, mifa.strategy.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("memory", ["server", "client"])
def test_a_client_that_gets_more_data_counts_more(memory: str) -> None:
    """Its new gradient takes the place of the old one as it was counted."""
    clients = Clients(make("focus", local_steps=5, learning_rate=0.03, memory=memory), device)
    assert [*clients.play(table(1, 20))]
    clients.devices[1].num_examples = 100
    for _ in clients.play(table(2, 400)):
        pass
    expected = best(np.where(np.arange(N) == 1, 100, SIZES))
    np.testing.assert_allclose(clients.strategy.weights, expected, atol=1e-9)
