"""Which engine `auto` stands for, and when a run says that another cohort may be faster."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sim
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.plan import Plan

SMALL: dict[str, Any] = {
    "model": "mlp",
    "cohort": "stacked",
    "num_clients": 6,
    "num_rounds": 5,
    "local_steps": 3,
}
LARGE: dict[str, Any] = SMALL | {"num_clients": 1000, "num_rounds": 10**7, "local_steps": 20}


@pytest.mark.parametrize(
    ("cores", "values", "engine", "why"),
    [
        (2, SMALL, "inline", "Ray takes 6 s to start"),
        (2, LARGE, "ray", "of training"),  # estimated from some steps
        (1, LARGE, "inline", "one core"),
        (2, {**SMALL, "trace": "bernoulli:p=1e-9"}, "inline", "about 0 s"),  # nobody there in the first round
        (2, {**LARGE, "cohort": "auto", "strategy": "fedprox"}, "inline", "trains on all cores"),
        (2, {**SMALL, "client_timeout": 5.0}, "ray", "client-timeout is set"),
        (2, {**SMALL, "engine": "inline"}, "inline", ""),
        (2, {**SMALL, "engine": "ray"}, "ray", ""),
    ],
)
def test_the_fastest_engine(
    cores: int, values: dict[str, Any], engine: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        experiment = prepare(Plan.of(Settings(**values)))
    finally:
        torch.set_num_threads(before)  # more would slow down all later tests, as processes share the cores
    assert experiment.settings.engine == engine
    assert why in experiment.why_engine
    assert bool(why) == bool(experiment.why_engine)


class Skip(nn.Module):
    """A model that is no sequence of layers."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.own, self.out = nn.Linear(64, 64), nn.Linear(64, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(x + self.own(x))


class Centred(Skip):
    """One that mixes the examples of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Recurrent(Skip):
    """One with a layer that `vmap` calls once for each client."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, num_outputs)
        self.recurrent = nn.GRU(8, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.recurrent(x.view(-1, 8, 8))[0][:, -1])
        return outputs


OWN = f"{__name__}.Skip"


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({}, True),
        ({"clients_per_round": 1}, False),
        ({"cohort": "loop"}, False),
        ({"strategy": "sequential-sgd", "trace": "always"}, False),
        ({"model": f"{__name__}.Centred"}, False),
        ({"model": f"{__name__}.Recurrent"}, False),
        ({"model": "mlp"}, False),
    ],
)
def test_a_run_that_may_be_faster_in_another_cohort_says_so(values: dict[str, Any], hint: bool) -> None:
    experiment = prepare(
        Plan.of(Settings(**{**SMALL, "engine": "inline", "cohort": "auto", "model": OWN, **values}))
    )
    assert ("--cohort vmap" in experiment.hint) == hint


@pytest.mark.parametrize("seeds", [["0"], ["0", "1"]], ids=["run", "comparison"])
def test_the_hint_is_printed_once(
    seeds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--num-clients=4", "--num-rounds=2", "--engine=inline", "--num-workers=1", "--no-report"]
    assert sim.main([f"--model={OWN}", *small, f"--run-dir={tmp_path}", "--seed", *seeds]) == 0
    assert capsys.readouterr().out.count("--cohort vmap may be faster\n") == 1
