"""Which oracle a run uses, and how many clients train in one call."""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from clients.environment import ClientEnvironment
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import COHORTS, LARGEST, ORACLES, choose, make_oracle
from clients.rules import RULES
from clients.simulated.virtual import VirtualClients
from flexfl.config import Settings
from flexfl.ground.allowed import options_of
from flexfl.tasks import Examples
from flexfl.tasks.models import MODELS

ROOT = Path(__file__).parents[1]
IMAGE = (1, 8, 8)


def classes_of(shape: tuple[int, ...]) -> Examples:
    return np.zeros((2, *shape), np.float32), np.zeros(2, np.int64)


def with_middle(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), *middle, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("cohort", "middle", "reason"),
    [
        ("stacked", nn.BatchNorm1d(6), "not a sequence of linear layers"),
        ("compiled", nn.ReLU(), "not a single linear layer with cross-entropy"),
        ("chain", nn.BatchNorm1d(6), "not a sequence of supported layers"),
        ("compiled-chain", nn.ReLU(), "not a sequence of convolutions"),
        ("vmap", nn.BatchNorm1d(6), "has buffers or frozen parameters"),
        ("vmap", nn.BatchNorm1d(6, track_running_stats=False), "has batch normalization"),
        ("vmap", nn.Dropout(), "cannot train the model: vmap: called random"),
    ],
)
def test_an_oracle_refuses_models_that_it_does_not_support(
    cohort: str, middle: nn.Module, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^cohort {cohort}: .*{reason}.*; use cohort "):
        make_oracle(FlatModel(with_middle(middle)), classes_of((6,)), cohort)


@pytest.mark.parametrize(
    ("module", "shape", "cpu", "other"),
    [
        (nn.Sequential(nn.Linear(6, 3)), (6,), ("compiled", LARGEST), ("stacked", LARGEST)),
        (with_middle(nn.ReLU()), (6,), ("stacked", LARGEST), ("stacked", LARGEST)),
        (MODELS["mlp"]((1, 28, 28), 10), (1, 28, 28), ("stacked", 5), ("stacked", LARGEST)),
        (nn.Linear(6, 3), (6,), ("loop", 1), ("vmap", LARGEST)),
        (MODELS["lenet"](IMAGE, 4), IMAGE, ("compiled-chain", 1), ("vmap", LARGEST)),
        (MODELS["cnn"]((1, 28, 28), 10), (1, 28, 28), ("chain", 1), ("vmap", 40)),
        (with_middle(nn.BatchNorm1d(6)), (6,), ("loop", 1), ("loop", 1)),
        (with_middle(nn.Dropout()), (6,), ("loop", 1), ("loop", 1)),  # random under vmap
    ],
)
def test_auto_depends_on_the_model_and_the_device(
    module: nn.Module, shape: tuple[int, ...], cpu: tuple[str, int], other: tuple[str, int]
) -> None:
    """`meta`, a device that computes nothing, stands for all but the CPU."""
    for device, expected in (("cpu", cpu), ("meta", other)):
        model, examples = FlatModel(deepcopy(module), device), classes_of(shape)
        assert choose(model, examples) == expected
        cohort, size = expected
        assert choose(model, examples, size=3) == (cohort, min(size, 3))
        oracle, limit = make_oracle(model, examples)
        assert (type(oracle), limit) == (type(ORACLES[cohort](model)), size)


def test_compiled_steps_train_clients_in_larger_cohorts_than_single_steps() -> None:
    """Each client's steps are done before the next client's; single steps read the weights of all of them."""
    model, examples = FlatModel(nn.Sequential(nn.Linear(3000, 10))), classes_of((3000,))
    assert choose(model, examples, rule=RULES["sgd"]) == ("compiled", LARGEST)
    assert choose(model, examples, rule=RULES["apfl"]) == ("compiled", 34)


def test_what_the_user_sets_is_used() -> None:
    model, examples = FlatModel(nn.Linear(6, 3)), classes_of((6,))
    assert choose(model, examples, "vmap") == ("vmap", LARGEST)
    assert choose(model, examples, "vmap", 3) == ("vmap", 3)
    assert choose(model, examples, "loop", 3) == ("loop", 1)
    with pytest.raises(ValueError, match=r"^unknown cohort 'lop'; known: auto, .*did you mean loop"):
        choose(model, examples, "lop")
    assert options_of(Settings)["cohort"].choices == tuple(COHORTS)


def test_a_run_and_the_clients_of_flwr_run_choose_alike(simulate: Callable[..., Any]) -> None:
    """Each client makes its oracle from the settings as the user gave them."""
    experiment = simulate(model="mlp", num_rounds=1).experiment
    assert (experiment.settings.cohort, experiment.settings.cohort_size) == ("stacked", 18)
    client = VirtualClients(ClientEnvironment(experiment.data, experiment.build_model, 0))
    assert type(client.oracle) is type(ORACLES["stacked"](client.model))


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
from torch import nn
from test_clients_choice import IMAGE, MODELS, FlatModel, classes_of, make_oracle

for model, shape, cohort in ((nn.Sequential(nn.Linear(6, 3)), (6,), "compiled"),
                             (MODELS["lenet"](IMAGE, 4), IMAGE, "compiled-chain")):
    print(type(make_oracle(FlatModel(model), classes_of(shape))[0]).__name__)
    try:
        make_oracle(FlatModel(model), classes_of(shape), cohort)
    except ValueError as error:
        print(error)
"""


def test_without_numba_other_oracles_are_chosen() -> None:
    """Asking for a compiled one says what to install."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    stacked, first, chain, second = done.stdout.splitlines()
    assert (stacked, chain) == ("DualLinear", "Chain")
    assert "pip install numba, or use cohort stacked" in first
    assert "pip install numba, or use cohort chain" in second
