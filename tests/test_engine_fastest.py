"""Which engine `auto` stands for."""

import os
from typing import Any

import pytest

from fedtide.config import Settings
from fedtide.engine.experiment import prepare

SMALL: dict[str, Any] = {"model": "mlp", "num_clients": 6, "num_rounds": 5, "local_steps": 3}
LARGE: dict[str, Any] = {"model": "mlp", "num_clients": 1000, "num_rounds": 10**7, "local_steps": 20}


@pytest.mark.parametrize(
    ("cores", "values", "engine", "why"),
    [
        (2, SMALL, "inline", "Ray takes 6 s to start"),
        (2, LARGE, "ray", "of training"),  # estimated from some steps
        (1, LARGE, "inline", "one core"),
        (2, {**SMALL, "trace": "bernoulli:p=1e-9"}, "inline", "about 0 s"),  # nobody there in the first round
        (2, {**LARGE, "model": "logistic", "strategy": "fedprox"}, "inline", "trains on all cores"),
        (2, {**SMALL, "client_timeout": 5.0}, "ray", "client-timeout is set"),
        (2, {**SMALL, "engine": "inline"}, "inline", ""),
        (2, {**SMALL, "engine": "ray"}, "ray", ""),
    ],
)
def test_the_fastest_engine(
    cores: int, values: dict[str, Any], engine: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr("torch.get_num_threads", lambda: cores)
    experiment = prepare(Settings(**values))
    assert experiment.settings.engine == engine
    assert why in experiment.why_engine
    assert bool(why) == bool(experiment.why_engine)
