"""FedNova with FedProx's local steps; its formulas for SGD are in the golden trajectories."""

from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import SIZES, N, Rounds, make

G = np.arange(9.0)  # the gradient of a linear loss
RATE, MU = 0.1, 2.0


def moved(steps: list[int], **options: Any) -> np.ndarray:
    """How the weights move in a round in which clients do these steps on the same linear loss."""
    strategy = make("fednova", learning_rate=RATE, local_steps=8, **options)
    rounds = Rounds(strategy)
    before = strategy.weights.copy()
    asked = rounds.ask(range(N))
    devices = {k: Device(int(SIZES[k]), lambda at: G) for k in range(N)}
    return rounds.hear(*((k, devices[k].fit(asked[k], steps[k])) for k in range(N))) - before


@pytest.mark.parametrize("mu", [0.0, MU])
def test_normalised_updates_do_not_depend_on_the_steps(mu: float) -> None:
    """delta_k / a_k = -eta g, so that w moves by -eta tau_eff g."""
    steps = [1, 2, 3, 5, 8]
    tau = SIZES @ steps / SIZES.sum()
    np.testing.assert_allclose(moved(steps, mu=mu), -RATE * tau * G, rtol=1e-9, atol=1e-12)


def test_tau_of_the_norms() -> None:
    """Equal steps: as FedProx, since tau_eff = a, by which the updates are divided."""
    a = (1 - (1 - RATE * MU) ** 4) / (RATE * MU)
    np.testing.assert_allclose(moved([4] * N, mu=MU, tau="norm"), -RATE * a * G, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mu", [1e-16, 1e-12, 15.0])
def test_any_mu_is_exact(mu: float) -> None:
    """a_k is the sum of (1 - eta mu)^i for i < s_k: s_k itself for the smallest mu."""
    a = sum((1 - RATE * mu) ** i for i in range(4))
    np.testing.assert_allclose(moved([4] * N, mu=mu, tau="norm"), -RATE * a * G, rtol=1e-7)


def test_without_mu_any_client_will_do() -> None:
    assert make("fednova").rule.name == "sgd"
    assert make("fednova", mu=0.1).rule.name == "proximal"
