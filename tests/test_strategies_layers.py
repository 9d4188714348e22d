"""Server optimisers and amplification: on top of any method that is w := w + D."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes import M, Rounds, make, play

from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS, Momentum, Nesterov, ServerSGD

LAYERS: dict[str, tuple[Any, ...]] = {
    **{name: (partial(optimizer, rate=0.3),) for name, optimizer in SERVER_OPTIMIZERS.items()},
    "amplify": (partial(Amplification, period=3, factor=1.5),),
}


@pytest.mark.parametrize("name", ["scheme-c", "mimic", "amplified-scaffold"])
def test_a_layer_that_changes_nothing(name: str) -> None:
    """SGD with rate 1, and amplification by 1."""
    layers = (partial(ServerSGD, rate=1.0), partial(Amplification, period=2, factor=1.0))
    plain, layered = Rounds(make(name)), Rounds(make(name, layers=layers))
    for online in (range(5), [1, 3], [], [0, 2]):
        np.testing.assert_allclose(play(layered, online), play(plain, online), rtol=1e-12, atol=1e-14)


def test_momentum_by_hand() -> None:
    """Updates of 1, 1 and none: m = 1, 1.5, 1.5; a round without replies is no step."""
    rounds = Rounds(make("fedavg", layers=(partial(Momentum, rate=2.0, beta1=0.5),)))
    start = rounds.strategy.weights[0]
    tables = (dict.fromkeys(online, np.ones(M)) for online in ([0, 1], [2], [], [3]))
    moved = [rounds.play(table)[0] - start for table in tables]
    np.testing.assert_allclose(moved, [2, 5, 5, 8.5])  # 2 (1 + 1.5), and then 1.75 more


def test_nesterov_is_momentum_that_clients_see_ahead_of_time() -> None:
    """Given the same updates the model is that of `momentum`; clients start eta beta1 m further."""
    layers = [(partial(kind, rate=2.0, beta1=0.5),) for kind in (Momentum, Nesterov)]
    plain, ahead = (Rounds(make("fedavg", layers=layer)) for layer in layers)
    for online in ([0, 1], [2], [], [3]):
        play(plain, online)
        play(ahead, online)
        (layer,) = plain.strategy.layers
        np.testing.assert_allclose(ahead.strategy.weights, plain.strategy.weights + layer.m)
        model = np.concatenate([array.ravel() for array in ahead.strategy.model(ahead.parameters)])
        np.testing.assert_allclose(model, plain.strategy.weights, rtol=1e-12)


def test_nesterov_on_fedavg_is_fedacg() -> None:
    layered, own = Rounds(make("fedavg", server_opt="nesterov:beta1=0.7")), Rounds(make("fedacg", beta=0.7))
    for online in (range(5), [1, 3], [], [0, 2]):
        np.testing.assert_allclose(play(layered, online), play(own, online), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "rates"),  # of an update without lag, and of one with lag 4
    [
        ({}, (0.3, 0.3)),
        ({"delay": "scale"}, (0.3, 0.075)),
        ({"delay": "scale", "tau_c": 4}, (0.3, 0.3)),
        ({"delay": "cap", "bias": "adam"}, (0.3, 0.25)),
    ],
)
def test_amsgrad_by_hand(options: dict[str, Any], rates: tuple[float, float]) -> None:
    """Updates of 2 and 0.1: m = .2, .19; v = .04, .0397; h stays .04. Corrected: 2, 1; h = 4, .04 / .0199."""
    amsgrad = SERVER_OPTIMIZERS["amsgrad"](np.zeros(1), rate=0.3, **options)
    first = amsgrad.apply(np.zeros(1), np.full(1, 2.0), 1, 0)
    second = amsgrad.apply(np.zeros(1), np.full(1, 0.1), 2, 4)
    corrected = "bias" in options
    np.testing.assert_allclose(first, rates[0] * (2 / 2 if corrected else 0.2 / 0.2), rtol=1e-6)
    expected = 1 / (0.04 / 0.0199) ** 0.5 if corrected else 0.19 / 0.2
    np.testing.assert_allclose(second, rates[1] * expected, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(SERVER_OPTIMIZERS))
def test_an_empty_round_is_no_step(name: str) -> None:
    ends = []
    for empty in (False, True):
        rounds = Rounds(make("fedavg", layers=LAYERS[name]))
        for number in range(3):
            rounds.play({0: np.ones(M) * (number + 1)})
            if empty:
                before = rounds.strategy.weights.copy()
                np.testing.assert_array_equal(rounds.play({}), before)
        ends.append(rounds.strategy.weights)
    np.testing.assert_array_equal(*ends)


def test_a_period_ends_also_in_an_empty_round() -> None:
    rounds = Rounds(make("fedavg", layers=LAYERS["amplify"]))
    start = rounds.strategy.weights[0]
    moved = [rounds.play(dict.fromkeys(online, np.ones(M)))[0] - start for online in ([0], [1], [], [2])]
    np.testing.assert_allclose(moved, [1, 2, 3, 4])


def test_amplification_keeps_the_fixed_point() -> None:
    """Example 1 of FedLaAvg: per period, x - X becomes (1 - eta (1 - q^P)) (x - X), q = 1 - 2 rate."""
    t1, t2, e1, e2, rate, factor = 3, 5, 1.0, -2.0, 0.05, 3.0
    q = 1 - 2 * rate
    X = (q**t2 * (e1 - e2) + e2 - e1 * q ** (t1 + t2)) / (1 - q ** (t1 + t2))
    layers = (partial(Amplification, period=t1 + t2, factor=factor),)
    rounds = Rounds(make("fedavg", layers=layers))
    x = rounds.strategy.weights[0]
    for _ in range(4):
        before = x
        for t in range(t1 + t2):
            optimum = e1 if t < t1 else e2
            x = rounds.play({0: -2 * rate * (x - optimum) * np.eye(M)[0]})[0]
        assert x - X == pytest.approx((1 - factor * (1 - q ** (t1 + t2))) * (before - X), rel=1e-9)
