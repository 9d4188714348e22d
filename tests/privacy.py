"""What differential privacy and secure aggregation do to a method, measured with the clients' real rules."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from devices import Device
from fakes import NamedProxy, TableManager
from flwr.common import FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

import strategies
from strategies import Roster

N, E, ROUNDS = 6, 4, 5
TARGETS = np.random.default_rng(5).normal(size=(N, 8))
Change = Callable[[int, dict[int, FitRes]], dict[int, FitRes]]


def play(
    name: str,
    sizes: Sequence[int],
    online: Callable[[int], Sequence[int]],
    steps: Callable[[int, int], int],
    change: Change = lambda number, replies: replies,
    wrap: Callable[[Any], Strategy] = lambda strategy: strategy,
) -> list[np.ndarray]:
    """The weights after each round; `change` is what happens to the replies on their way.

    Client k has the objective |w - target_k|^2 / 2; `steps(client, round)` are those that it does.
    """
    start = ndarrays_to_parameters([np.zeros((2, 3)), np.zeros(2)])
    short = {"amplified-scaffold": {"period": 2}, "ghbm": {"tau": 2}}  # so that their corrections change
    own = short.get(name, {})
    options = {**own, "local_steps": E, "learning_rate": 0.2, "num_rounds": ROUNDS, "max_update_norm": "off"}
    strategy = strategies.make(name, start, Roster(np.array(sizes)), **options)
    devices = [
        Device(n, lambda w, k=k: w - TARGETS[k], lambda w: np.ones_like(w)) for k, n in enumerate(sizes)
    ]
    outer, manager, weights = wrap(strategy), TableManager(), []
    parameters: Any = outer.initialize_parameters(manager)
    for number in range(1, ROUNDS + 1):
        manager.online = online(number)
        asked = outer.configure_fit(number, parameters, manager)
        replies = {int(p.cid): devices[int(p.cid)].fit(i, steps(int(p.cid), number)) for p, i in asked}
        results = [(NamedProxy(str(k)), result) for k, result in change(number, replies).items()]
        parameters = outer.aggregate_fit(number, results, [])[0]
        weights.append(np.concatenate([a.ravel() for a in parameters_to_ndarrays(parameters)]))
    return weights


def averaged(number: int, replies: dict[int, FitRes]) -> dict[int, FitRes]:
    """What SecAgg+ hands to a strategy: each reply has the mean of all, weighted by their examples.

    That is Flower's `SecAggPlusWorkflow`, but for the cryptography and its rounding.
    """
    arrays = [parameters_to_ndarrays(result.parameters) for result in replies.values()]
    sizes = [result.num_examples for result in replies.values()]
    mean = [np.average(np.stack(column), axis=0, weights=sizes) for column in zip(*arrays, strict=True)]
    return {k: replace(r, parameters=ndarrays_to_parameters(mean)) for k, r in replies.items()}


def away(number: int) -> list[int]:
    """Who is online: not everybody."""
    return [k for k in range(N) if (k + number) % 3]


def secure_aggregation_error(
    name: str, steps: Callable[[int, int], int], sizes: Sequence[int] = (10, 20, 30, 40, 50, 60)
) -> float:
    """How far the weights are from those without secure aggregation, relative to how far these have come."""
    plain, secure = (play(name, sizes, away, steps, c)[-1] for c in (lambda t, replies: replies, averaged))
    return float(np.linalg.norm(secure - plain) / np.linalg.norm(plain))


def complete(client: int, number: int) -> int:
    """All clients do all of their steps."""
    return E


def incomplete(client: int, number: int) -> int:
    """Some do less."""
    return 1 + (client + number) % E


CLIP = 1e-3  # far shorter than any update


def influence(name: str) -> list[float]:
    """How far one client's clipped update of round 3 moves the weights of rounds 3, 4 and 5.

    In units of what Flower's wrapper makes its noise for, clipping norm / number of clients. The client does
    one of its four steps, and is away after round 3.
    """

    def private(strategy: Any) -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, CLIP, N)

    def moved(by: float) -> Change:
        def change(number: int, replies: dict[int, FitRes]) -> dict[int, FitRes]:
            if number == 3:
                arrays = parameters_to_ndarrays(replies[0].parameters)
                arrays[0] = arrays[0] + by  # so large that nothing else is left of it
                replies[0] = replace(replies[0], parameters=ndarrays_to_parameters(arrays))
            return replies

        return change

    ends = [
        play(
            name,
            [10] * N,
            lambda t: range(t > 3, N),
            lambda k, t: 1 if k == 0 else E,
            moved(by),
            private,
        )
        for by in (1e6, -1e6)
    ]
    return [float(np.linalg.norm(a - b) / 2 * N / CLIP) for a, b in zip(*ends, strict=True)][2:]
