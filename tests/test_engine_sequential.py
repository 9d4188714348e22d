"""Sequential SGD: no clients, as many steps on all members' data in one place."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import M, N, Rounds, make, stored
from torch import nn

from fedtide.engine.central import CentralTrainer
from fedtide.tasks import PartitionedData
from strategies.sequential_sgd import SequentialSGD


class Notes:
    """A trainer that writes down what it is asked for, and moves by something that follows from that."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int, int]] = []

    def __call__(self, weights: Any, members: Any, t: int, steps: int, rate: float, batch_size: int) -> Any:
        self.asked.append((members.tolist(), t, steps))
        return weights - rate * steps * np.random.default_rng([t, *members]).normal(size=M)


def begin(**options: Any) -> tuple[Rounds, Notes]:
    strategy: Any = make(SequentialSGD, **{"members": range(N - 1), "local_steps": 4, **options})
    strategy.trainer = Notes()
    return Rounds(strategy), strategy.trainer


def play(rounds: Rounds, online: Any, **events: Any) -> np.ndarray:
    assert rounds.ask(online, **events) == {}
    return rounds.hear()


def test_as_many_steps_as_the_clients_of_a_round_could_do() -> None:
    """K E, K at most those who are available; none where nobody is, who could not train either."""
    for options, expected in (({}, [16, 8, 0]), ({"clients_per_round": 3}, [12, 8, 0])):
        rounds, notes = begin(**options)
        for online in (range(N - 1), [0, 3], []):
            before, after = rounds.strategy.weights.copy(), play(rounds, online)
            assert np.array_equal(before, after) is (not len(online))
            np.testing.assert_array_equal(rounds.parameters.vector, after)
            assert rounds.strategy.report.measured["iterations"] == expected[rounds.number - 1]
        assert [steps for *_, steps in notes.asked] == expected[:2]


def test_local_epochs_are_those_of_the_mean_member() -> None:
    """2 epochs of 10, 20, 30, 40 examples in batches of 10 are 2, 4, 6, 8 steps."""
    rounds, notes = begin(local_epochs=2, batch_size=10)
    play(rounds, [0, 1])
    assert notes.asked[0][2] == 10


@pytest.mark.parametrize(("departure", "left"), [("exclude", [0, 2, 3, 4]), ("include", [0, 1, 2, 3, 4])])
def test_union_follows_the_objective(departure: str, left: list[int]) -> None:
    rounds, notes = begin(departure=departure)
    play(rounds, [0])
    play(rounds, [0], arrived=[4])
    play(rounds, [0], departed=[1])
    assert [members for members, *_ in notes.asked] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], left]


def test_resumed_run_is_the_same() -> None:
    (whole, _), (stopped, _), (resumed, _) = (begin(departure="exclude") for _ in range(3))
    for rounds in (whole, stopped):
        play(rounds, range(3))
        play(rounds, range(N), arrived=[4], departed=[0])
    resumed.strategy.load_state_dict(stored(stopped.strategy.state_dict()))
    resumed.number, resumed.parameters = 2, resumed.strategy.initialize_parameters(resumed.manager)
    np.testing.assert_array_equal(play(resumed, range(1, N)), play(whole, range(1, N)))


# The real trainer


def test_it_learns_from_data_of_clients_that_are_never_there(simulate: Callable[..., Any]) -> None:
    """One label a client, most of them away: where FedAvg learns a few labels, this learns all."""
    settings = {"num_clients": 10, "partition": "label", "num_rounds": 15, "trace": "always+bernoulli:p=0.2"}
    ideal = simulate(**settings, strategy="sequential-sgd")
    assert ideal.rounds[-1]["accuracy"] > 0.8
    assert ideal.rounds[-1]["accuracy"] > simulate(**settings, strategy="fedavg").rounds[-1]["accuracy"] + 0.2
    assert all(r["selected"] == r["active"] == [] and r["bytes_up"] == 0 for r in ideal.rounds)


def test_labels_that_are_not_classes_are_refused() -> None:
    x, labels = np.ones((6, 4), np.float32), np.array([0, 1, 2, 0, 1, 7])
    parts = np.split(np.arange(6), 2)
    data = PartitionedData.divide((x, labels), (x, labels % 3), 3, parts, 0.0, 0)
    trainer = CentralTrainer(data, lambda: nn.Sequential(nn.Linear(4, 3)), 0)
    weights = np.zeros(15, np.float32)
    assert trainer(weights, np.array([0]), 1, 4, 0.1, 2).any()
    with pytest.raises(ValueError, match="labels 0 to 7 where the task has 3 classes"):
        trainer(weights, np.array([0, 1]), 1, 4, 0.1, 2)


def test_one_client_alone_is_plain_sgd(simulate: Callable[..., Any]) -> None:
    """With whole batches, one client of FedAvg does the same steps."""
    settings = {"num_clients": 1, "trace": "always", "batch_size": 0, "partition": "iid"}
    ideal, fedavg = (simulate(**settings, strategy=name) for name in ("sequential-sgd", "fedavg"))
    np.testing.assert_allclose(ideal.weights, fedavg.weights, rtol=1e-4, atol=1e-6)


def test_its_trajectory_is_gradient_descent_on_the_union(simulate: Callable[..., Any]) -> None:
    """In NumPy: as many steps as are asked of those available, on the members' data as they come and go."""
    changes = {"arrivals": "5=3", "departures": "1=4", "option": ("departure=exclude",), "num_rounds": 6}
    run = simulate(strategy="sequential-sgd", trace="bernoulli:p=0.6", batch_size=0, **changes)
    data, vector = run.experiment.data, run.experiment.initial.vector.astype(float)
    W, b = vector[:640].reshape(10, 64), vector[640:]

    def softmax(x: Any) -> Any:
        exp = np.exp(x.reshape(len(x), 64) @ W.T + b)
        return exp / exp.sum(axis=1, keepdims=True)

    for record in run.rounds:
        now = run.experiment.trace.round(record["round"])
        x, y = data.train_set(np.flatnonzero(now.member))
        for _ in range(4 * np.count_nonzero(now.member & now.online)):
            error = (softmax(x) - np.eye(10)[y]) / len(y)
            W, b = W - 0.2 * error.T @ x.reshape(len(x), 64), b - 0.2 * error.sum(axis=0)
        tested, labels = data.test
        losses = -np.log(softmax(tested)[np.arange(len(labels)), labels])
        assert record["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    np.testing.assert_allclose(run.weights, [*W.ravel(), *b], rtol=1e-3, atol=1e-5)
