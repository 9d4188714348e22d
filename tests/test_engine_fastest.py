"""Which engine `auto` stands for."""

import os
from dataclasses import replace

import pytest

from clients.rules import SGD
from flexfl.config import Settings
from flexfl.engine.choice import fastest_engine
from flexfl.engine.experiment import prepare

SMALL = Settings(model="mlp", num_clients=6, num_rounds=5, local_steps=3)
LARGE = replace(SMALL, num_clients=1000, local_steps=20)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_a_short_run_is_over_before_ray_has_started() -> None:
    experiment = prepare(SMALL)
    assert experiment.settings.engine == "inline"
    assert "Ray takes 6 s to start" in experiment.why_engine


@pytest.mark.usefixtures("two_cores")
def test_a_long_run_takes_all_cores() -> None:
    """Its training is estimated from some steps; nobody waits for it here."""
    assert prepare(replace(LARGE, num_rounds=10**7)).settings.engine == "ray"


@pytest.mark.usefixtures("two_cores")
def test_rounds_that_are_shorter_than_what_ray_adds_to_them() -> None:
    """A round of about 2 ms; Ray pays from 7 on."""
    assert prepare(replace(SMALL, local_steps=1, num_rounds=10**7)).settings.engine == "inline"


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("strategy", "engine"), [("fedprox", "inline"), ("apfl", "ray")])
def test_one_process_that_trains_on_all_cores(
    monkeypatch: pytest.MonkeyPatch, strategy: str, engine: str
) -> None:
    """Compiled steps do; those of other rules are single ones, on one core."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    settings = replace(LARGE, model="logistic", num_rounds=10**7, strategy=strategy)
    experiment = prepare(settings)
    assert experiment.settings.cohort == "compiled"
    assert experiment.settings.engine == engine
    assert (experiment.why_engine == "this process trains on all cores") == (engine == "inline")


def test_on_one_core_ray_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert prepare(replace(LARGE, num_rounds=10**7)).settings.engine == "inline"


@pytest.mark.parametrize("setting", ["client_timeout", "num_workers", "ray_address"])
def test_what_only_ray_can_do_takes_ray(setting: str) -> None:
    value = {"client_timeout": 5.0, "num_workers": 2, "ray_address": "auto"}[setting]
    experiment = prepare(replace(SMALL, **{setting: value}))
    assert experiment.settings.engine == "ray"
    assert experiment.why_engine == f"{setting.replace('_', '-')} is set"


def test_a_choice_of_the_user_stands() -> None:
    for engine in ("inline", "ray"):
        experiment = prepare(replace(SMALL, engine=engine))
        assert (experiment.settings.engine, experiment.why_engine) == (engine, "")


@pytest.mark.usefixtures("two_cores")
def test_nobody_there_in_the_first_round_is_no_error() -> None:
    experiment = prepare(replace(SMALL, trace="bernoulli:p=1e-9"))
    assert fastest_engine(experiment, SGD)[0] == "inline"
