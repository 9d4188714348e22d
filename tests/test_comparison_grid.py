"""Several values of settings: the cells of a comparison."""

from pathlib import Path
from typing import Any

import pytest

from fedtide.config import Settings
from fedtide.config.grid import at_scale, cells, is_comparison, overridden
from fedtide.config.settings import read_toml
from fedtide.plan import Plan

ROOT = Path(__file__).parents[1]


def test_one_value_each_is_a_run() -> None:
    assert not is_comparison({"strategy": "mifa", "seed": 3, "option": ["first-round=seen", "empty=move"]})
    assert is_comparison({"strategy": ["mifa"]})
    assert is_comparison({"cell": [{"seed": 1}]})


def test_cells_are_the_product() -> None:
    found = cells({"strategy": ["fedavg", "mifa"], "num-rounds": 7, "seed": [0, 1, 2]}, "here")
    pairs = [(strategy, seed) for strategy in ("fedavg", "mifa") for seed in (0, 1, 2)]
    expected = [Settings(strategy=strategy, seed=seed, num_rounds=7) for strategy, seed in pairs]
    assert [cell.settings for cell in found] == expected
    assert found[4].varied == {"strategy": "mifa", "seed": 1}
    assert [cell.others for cell in found] == [{"strategy": "fedavg"}] * 3 + [{"strategy": "mifa"}] * 3


def test_settings_that_go_together() -> None:
    """With the paper's number for them; what a table leaves out keeps its common value."""
    together = [{"local-steps": 50, "trace": "always", "paper": 88.5}, {"local-steps": 100}]
    found = cells({"cell": together, "trace": "bernoulli", "seed": [0, 1]}, "here")
    assert [(c.settings.local_steps, c.settings.trace, c.settings.seed, c.paper) for c in found] == [
        (50, "always", 0, 88.5),
        (50, "always", 1, 88.5),
        (100, "bernoulli", 0, None),
        (100, "bernoulli", 1, None),
    ]
    assert found[2].varied == {"local-steps": 100, "trace": "bernoulli", "seed": 0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": []}, "here: seed has no value"),
        ({"seed": [0, 1, 0]}, "the cell seed=0 occurs twice"),
        ({"seed": list(range(101)), "num-rounds": list(range(1, 101))}, "10100 cells"),
        ({"seed": [0, "1"]}, "seed is '1'; it must be of type int"),
        ({"strategy": ["fedavg", "mifa"], "nonesuch": 1}, "unknown setting 'nonesuch'"),
        ({"cell": []}, "cell must be tables"),
        ({"cell": {"seed": 1}}, "cell must be tables"),
        ({"cell": [{"seed": 1}], "seed": [1, 2]}, "cell 1 sets seed, of which a list is given"),
        ({"cell": [{"seed": 1, "paper": "88 %"}]}, "paper of cell 1 is '88 %'; it must be a number"),
        ({"cell": [{"seed": 1}, {"seed": 1}]}, "the cell seed=1 occurs twice"),
    ],
)
def test_bad_grids(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cells(values, "here")


TABLES = [
    {"strategy": "fedavg", "learning-rate": 0.1, "paper": 70.0},
    {"strategy": "fedavg", "learning-rate": 0.05, "amplify": "20,2"},
    {"strategy": "mifa", "learning-rate": 0.1},
    {"strategy": "mimic", "option": ["departure=include"]},
    {"strategy": "mimic", "option": "departure=auto,outliers=clip"},
]


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"strategy": "fedavg"}, [0, 1]),
        ({"strategy": "fedavg", "learning-rate": 0.1}, [0]),
        ({"learning-rate": [0.05, 0.1]}, [0, 1, 2]),
        ({"amplify": "20,2"}, [1]),
        ({"option": ["departure=include"]}, [3]),
        ({"option": ["departure=auto", "outliers=clip"]}, [4]),
    ],
)
def test_flags_choose_cells(flags: dict[str, Any], chosen: list[int]) -> None:
    values = overridden({"seed": [0, 1], "num-rounds": 9, "cell": TABLES}, flags | {"seed": 3}, "here")
    assert values == {"seed": 3, "num-rounds": 9, "cell": [TABLES[number] for number in chosen]}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"strategy": "efl"}, "has strategy=efl; there are fedavg, mifa, mimic"),
        ({"strategy": "mifa", "learning-rate": 0.05}, r"has learning-rate=0\.05; there are 0\.1"),
    ],
)
def test_flags_that_no_cell_has(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"here: no cell left {says}"):
        overridden({"cell": TABLES}, flags, "here")


def test_a_small_scale_replaces_settings() -> None:
    values = {"num-rounds": 200, "seed": [0, 1, 2], "small": {"num-rounds": 20, "seed": 0}}
    assert at_scale(values, "full", "here") == {"num-rounds": 200, "seed": [0, 1, 2]}
    assert at_scale(values, "small", "here") == {"num-rounds": 20, "seed": 0}
    with pytest.raises(ValueError, match="here has no \\[small\\] table"):
        at_scale({"num-rounds": 200}, "small", "here")
    with pytest.raises(ValueError, match="small is 3; it must be a table"):
        at_scale({"small": 3}, "full", "here")


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda file: file.stem)
def test_every_experiment_of_the_project_can_be_run(file: Path) -> None:
    """At all its scales: names, options and settings are right."""
    values = read_toml(str(file))
    for scale in ("full", "small") if "small" in values else ("full",):
        for cell in cells(at_scale(values, scale, file.name), file.name):
            Plan.of(cell.settings)
