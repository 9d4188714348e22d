"""Which oracle a run uses, and how many clients train in one call: no measurement changes the weights."""

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from torch import nn

from clients.environment import ClientEnvironment
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import COHORTS, ORACLES
from clients.simulated.tuning import LARGEST, Work, choose, make_oracle
from clients.simulated.virtual import VirtualClients
from flexfl.config import Settings
from flexfl.ground.allowed import options_of
from flexfl.tasks import Examples
from flexfl.tasks.models import MODELS


def classes_of(shape: tuple[int, ...]) -> Examples:
    return np.zeros((2, *shape), np.float32), np.zeros(2, np.int64)


EXAMPLES = classes_of((6,))


def test_an_oracle_refuses_models_that_it_does_not_support() -> None:
    def refused(cohort: str, middle: nn.Module) -> str:
        model = FlatModel(nn.Sequential(nn.Linear(6, 6), middle, nn.Linear(6, 3)))
        with pytest.raises(ValueError, match=f"^cohort {cohort}: ") as made:
            make_oracle(model, EXAMPLES, cohort)
        with pytest.raises(ValueError, match=f"^cohort {cohort}: ") as chosen:
            choose(model, EXAMPLES, Work(3, 5, 20), 10, cohort)
        assert str(made.value) == str(chosen.value)
        return str(made.value)

    assert "not a sequence of linear layers" in refused("stacked", nn.BatchNorm1d(6))
    assert "not a sequence of supported layers" in refused("chain", nn.BatchNorm1d(6))
    assert "has buffers or frozen parameters" in refused("vmap", nn.BatchNorm1d(6))
    assert "has batch normalization" in refused("vmap", nn.BatchNorm1d(6, track_running_stats=False))
    assert "cannot train the model: vmap: called random" in refused("vmap", nn.Dropout())


def test_auto_depends_on_the_model_and_the_device() -> None:
    """`meta`, a device that computes nothing, stands for all but the CPU."""

    def found(module: nn.Module, shape: tuple[int, ...] = (6,), **given: Any) -> list[tuple[str, int]]:
        models = [FlatModel(deepcopy(module), device) for device in ("cpu", "meta")]
        examples = classes_of(shape)
        choices = [choose(model, examples, Work(3, 5, 20), 10, **given) for model in models]
        for model, (cohort, size) in zip(models, choices, strict=True):
            oracle, limit = make_oracle(model, examples, size=size)
            assert (type(oracle), limit) == (type(ORACLES[cohort](model)), size)
        return choices

    def with_middle(*middle: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), *middle, nn.Linear(6, 3))

    (cpu, size), (gpu, limit) = found(with_middle(nn.ReLU()))
    assert (cpu, gpu, 1 < size <= 10, limit) == ("stacked", "stacked", True, LARGEST)
    assert found(nn.Linear(6, 3)) == [("loop", 1), ("vmap", LARGEST)]
    assert found(nn.Sequential(nn.Linear(6, 3))) == [("compiled", LARGEST), ("stacked", LARGEST)]
    assert found(with_middle(nn.ReLU()), size=3) == [("stacked", 3), ("stacked", 3)]
    assert found(MODELS["lenet"]((1, 8, 8), 4), (1, 8, 8)) == [("compiled-chain", 1), ("vmap", LARGEST)]
    assert found(MODELS["lenet"]((1, 8, 8), 4), (1, 8, 8), size=3) == [("compiled-chain", 1), ("vmap", 3)]
    assert found(MODELS["cnn"]((1, 28, 28), 10), (1, 28, 28)) == [("chain", 1), ("vmap", 40)]
    assert found(with_middle(nn.Tanh())) == [("loop", 1), ("vmap", LARGEST)]
    assert found(with_middle(nn.BatchNorm1d(6))) == [("loop", 1), ("loop", 1)]
    assert found(with_middle(nn.Dropout())) == [("loop", 1), ("loop", 1)]  # random under vmap


def test_what_the_user_sets_is_used() -> None:
    def chosen(cohort: str, size: int) -> tuple[str, int]:
        return choose(FlatModel(nn.Linear(6, 3)), EXAMPLES, Work(3, 5, 20), 10, cohort, size)

    assert chosen("vmap", 0) == ("vmap", LARGEST)
    assert chosen("vmap", 3) == ("vmap", 3)
    assert chosen("loop", 0) == chosen("loop", 3) == ("loop", 1)
    known = "auto, compiled, stacked, vmap, compiled-chain, chain, loop"
    with pytest.raises(ValueError, match=rf"^unknown cohort 'lop'; known: {known}; did you mean loop\?$"):
        chosen("lop", 0)


def random_clock(seed: int) -> Callable[[], float]:
    """A clock that advances by a random time, from a microsecond to a second, with every call."""
    rng, now = np.random.default_rng(seed), 0.0

    def read() -> float:
        nonlocal now
        now += 10.0 ** rng.uniform(-6, 0)
        return now

    return read


@pytest.mark.parametrize("strategy", ["scheme-c", "fedprox"])
@pytest.mark.parametrize("model", ["logistic", "mlp", "lenet"])
def test_no_clock_changes_the_weights(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, model: str, strategy: str
) -> None:
    found, sizes = set(), set()
    for seed in range(5):
        with monkeypatch.context() as patch:
            patch.setattr("time.perf_counter", random_clock(seed))
            played = simulate(model=model, strategy=strategy, num_clients=20, num_rounds=2)
        settings = played.experiment.settings
        found.add((settings.cohort, sha256(played.weights.tobytes()).hexdigest()))
        sizes.add(settings.cohort_size)
    assert len(found) == 1
    ((cohort, _),) = found
    # Sizes of stacked cohorts are timed, and may differ.
    assert len(sizes) > 1 or cohort in ("compiled", "compiled-chain")
    experiment = played.experiment
    # Under `flwr run`, each client makes its oracle from the settings as the user gave them.
    environment = ClientEnvironment(experiment.data, experiment.build_model, settings.seed)
    client = VirtualClients(environment)
    assert type(client.oracle) is type(ORACLES[cohort](client.model))


def test_the_setting_names_every_oracle() -> None:
    assert options_of(Settings)["cohort"].choices == tuple(COHORTS)
