"""Names, options and their values: what is unknown or out of range is refused by name."""

from dataclasses import fields
from typing import Any

import pytest
from fakes import make

import strategies

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


@every_strategy
def test_options_out_of_range_are_named(name: str) -> None:
    known = {field.name for field in fields(strategies.STRATEGIES[name].options_type())}
    for option in sorted(known & set(OUT_OF_RANGE)):
        for value in OUT_OF_RANGE[option]:
            with pytest.raises(ValueError, match=f"^{option.replace('_', '-')} is "):
                make(name, **{option: value})
