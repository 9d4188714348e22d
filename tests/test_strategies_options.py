"""Names, options and their values: what is unknown or out of range is refused by name."""

from typing import Any

import numpy as np
import pytest
from fakes import make

import strategies
from strategies.core.schedules import Staircase
from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import Adam


def test_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=f"unknown strategy 'fedsvg'; known: {', '.join(strategies.STRATEGIES)}"
    ):
        make("fedsvg")


@pytest.mark.parametrize("name", ["fedavg", "mimic", "efl"])
def test_unknown_option_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no option 'lr'; known: .*learning_rate"):
        make(name, lr=1)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("fedavg", "clients_per_round", [-1]),
        ("fedavg", "local_steps", [0]),
        ("fedavg", "learning_rate", [0.0, float("nan"), float("inf")]),
        ("fedavg", "departure", ["keep", ""]),
        ("fedavg", "server_rate", [0.0]),
        ("fedavg", "max_update_norm", ["often", "0", "-1", "nan", "inf"]),
        ("scheme-c", "reboot_peak", [0.5]),
        ("fedlaavg", "memory", ["both"]),
        ("mifa", "table_memory", [-1.0]),
        ("mimic", "global_decay", [1.5]),
        ("efl", "sparsity", [0.0, 1.5]),
        ("efl", "abandon_after", [0]),
        ("pfedme", "inner_steps", [0]),
    ],
)
def test_options_out_of_range_are_named(name: str, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{option.replace('_', '-')} is {value!r}; (choose|it must)"):
            make(name, **{option: value})


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
