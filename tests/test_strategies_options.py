"""Names, options and their values: what is unknown or out of range is refused by name."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from fakes import make

import strategies
from strategies.core.schedules import Staircase
from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import Adam

every_strategy = pytest.mark.parametrize("name", strategies.STRATEGIES)


def test_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=f"unknown strategy 'fedsvg'; known: {', '.join(strategies.STRATEGIES)}"
    ):
        make("fedsvg")


@every_strategy
def test_unknown_option_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no option 'lr'; known: .*learning_rate"):
        make(name, lr=1)


OUT_OF_RANGE: dict[str, list[Any]] = {
    "clients_per_round": [-1],
    "local_steps": [0, -1],
    "local_epochs": [-1],
    "batch_size": [-1],
    "learning_rate": [0.0, -1.0, float("nan"), float("inf")],
    "num_rounds": [-1],
    "seed": [-1],
    "departure": ["keep", ""],
    "departure_constant": [0.0, -1.0, float("nan")],
    "weights": ["p"],
    "server_rate": [0.0, float("nan"), float("inf")],
    "batch": ["half"],
    "reboot": ["maybe"],
    "reboot_peak": [0.5, float("nan"), float("inf")],
    "reboot_factor": [0.0, float("nan")],
    "sparsity": [0.0, -0.1, 1.5, float("nan")],
    "elasticity": [-1.0, float("nan"), float("inf")],
    "ties": ["all"],
    "apply": ["none"],
    "fisher_batches": [-1],
    "abandon": ["always"],
    "abandon_constant": [0.0, float("nan")],
    "abandon_after": [0],
    "memory": ["both"],
    "alpha": [-0.1, 1.1, float("nan")],
    "alpha_mode": ["never"],
    "gradient": ["output"],
    "penalty": [0.0, float("nan"), float("inf")],
    "inner_steps": [0, -1],
    "personal_rate": [0.0, float("nan"), float("inf")],
    "beta": [-0.5, float("nan"), float("inf")],
    "start": ["cold"],
}


def test_specs_are_taken_as_on_the_command_line() -> None:
    strategy = make(
        "fedavg", lr_schedule="staircase:restart=false", server_opt="adam:rate=0.5", amplify="3,2"
    )
    assert strategy.options.lr_schedule == Staircase(restart=False)
    assert [type(layer) for layer in strategy.layers] == [Adam, Amplification]
    assert strategy.layers[0].rate == 0.5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"lr_schedule": "stairs"},
            "unknown lr-schedule 'stairs'; .*did you mean staircase",
        ),
        ({"lr_schedule": "staircase:on=1"}, "lr-schedule staircase has no option 'on'; known: restart"),
        (
            {"lr_schedule": "geometric:factor=2"},
            "lr-schedule geometric: factor is 2.0; it must be above 0 and at",
        ),
        ({"lr_schedule": 0.1}, "lr-schedule is 0.1; give `make` a spec or a schedule"),
        ({"server_opt": "adan"}, "unknown server-opt 'adan'; .*did you mean adam"),
        ({"server_opt": 3}, "server-opt is 3; it must be text"),
        ({"amplify": "3"}, "amplify '3' is not PERIOD,FACTOR"),
        ({"local_steps": 2.5}, "local-steps is 2.5; it must be a whole number"),
        ({"local_steps": "10"}, "local-steps is '10'; it must be a whole number"),
        ({"local_steps": True}, "local-steps is True; it must be a whole number"),
        ({"learning_rate": None}, "learning-rate is None; it must be a number"),
        ({"departure": 1}, "departure is 1; it must be text"),
        ({"clients_pr_round": 3}, "fedavg has no option 'clients_pr_round'.*did you mean clients_per_round"),
    ],
)
def test_errors_of_options_say_what_they_must_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        make("fedavg", **options)


def test_numbers_of_numpy_are_numbers() -> None:
    assert make("fedavg", local_steps=np.int64(3), learning_rate=np.float32(0.5)).options.local_steps == 3


@every_strategy
def test_options_out_of_range_are_named(name: str) -> None:
    known = {field.name for field in fields(strategies.STRATEGIES[name].options_type())}
    for option in sorted(known & set(OUT_OF_RANGE)):
        for value in OUT_OF_RANGE[option]:
            with pytest.raises(ValueError, match=f"^{option.replace('_', '-')} is "):
                make(name, **{option: value})
