"""The model that is evaluated and kept, where it is not what clients start from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, Rounds, make
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

import fedtide
import strategies
from fedtide import Task
from strategies import Roster


def model(rounds: Rounds) -> np.ndarray:
    """The evaluated model as one vector."""
    return np.concatenate([array.ravel() for array in rounds.strategy.model(rounds.parameters)])


def opposed(rounds: Rounds) -> None:
    """A round with updates of (1, 1/2) and (-1, 1/2): their mean has the squared norm 1/4, they have 5/4."""
    rounds.play({0: [1, 0.5, *np.zeros(M - 2)], 1: [-1, 0.5, *np.zeros(M - 2)]})


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"epsilon": 0.0}, 2.5),
        ({"epsilon": 1.0, "units": "update"}, 1.0),  # 5/4 / (2 (1/4 + 1)) is less
        ({"epsilon": 25.0}, 1.25),  # 5/4 / (2 (1/4 + 25 * 0.1^2))
    ],
    ids=str,
)
def test_fedexp_by_hand(options: dict[str, Any], factor: float) -> None:
    rounds = Rounds(make("fedexp", weights="uniform", learning_rate=0.1, **options))
    before = rounds.strategy.weights.copy()
    opposed(rounds)
    expected = before + factor / 2 * np.eye(M)[1]
    np.testing.assert_allclose(rounds.strategy.weights, expected)
    assert rounds.strategy.report.measured == {"extrapolation": pytest.approx(factor)}
    for _ in range(2):
        np.testing.assert_allclose(model(rounds), (before + expected) / 2)
        rounds.play({})  # leaves the mean of the last two as it is


def test_what_a_wrapper_adds_is_in_the_model() -> None:
    rounds = Rounds(make("fedexp"))
    opposed(rounds)
    before, arrays = model(rounds), parameters_to_ndarrays(rounds.parameters)
    rounds.parameters = ndarrays_to_parameters([array + 1 for array in arrays])
    np.testing.assert_allclose(model(rounds), before + 1)


def test_buffers_are_the_newest() -> None:
    start = ndarrays_to_parameters([*START, np.array([7.0, 8.0])])
    strategy = strategies.make("fedexp", start, Roster(SIZES), num_buffers=1)
    rounds = Rounds(strategy)
    asked = rounds.ask([0])
    arrays = parameters_to_ndarrays(asked[0].parameters)
    result = strategy.model(ndarrays_to_parameters([*arrays[:-1], np.array([9.0, 9.0])]))
    np.testing.assert_array_equal(result[-1], [9, 9])
    assert [array.shape for array in result] == [array.shape for array in arrays]


@pytest.mark.parametrize("method", [{"strategy": "fedexp"}, {"server_opt": "nesterov"}], ids=str)
def test_the_weights_that_a_run_leaves_are_those_evaluated(method: dict[str, Any], tmp_path: Path) -> None:
    """The loss that the summary computes from them is that of the last evaluation."""
    inputs, labels = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2
    task = Task.from_arrays(inputs, labels, clients=np.arange(60) % 3)
    quiet: dict[str, Any] = {"report": False, "progress": False, "run_dir": str(tmp_path)}
    rounds = {"num_rounds": 3, "num_clients": 3, "train_loss": True, "engine": "inline"}
    run = fedtide.run(task=task, **rounds, **method, **quiet)
    assert run.summary["final"]["train_loss"] == pytest.approx(run.records[-1]["train_loss"], rel=1e-9)
