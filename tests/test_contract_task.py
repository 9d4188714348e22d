"""A client's task on the wire: what is sent, what is read, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, Parameters, serde
from hypothesis import example, given
from hypothesis import strategies as st

from fedtide.base.contract import FitConfig

INT64 = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
SCALARS = st.booleans() | st.binary(max_size=9) | st.floats(allow_nan=False) | INT64 | TEXT
WIRE_KEYS = {
    *("round", "learning-rate", "batch-size", "model-arrays", "local-steps", "local-epochs"),
    *("rule", "last-accepted", "farewell"),
}
CONFIGS = st.builds(
    FitConfig,
    round=NATURAL,
    learning_rate=st.floats(0, allow_infinity=False) | NATURAL,
    batch_size=NATURAL,
    model_arrays=NATURAL,
    local_steps=st.integers(1, 2**63 - 1),
    local_epochs=NATURAL,
    rule=TEXT,
    last_accepted=st.none() | NATURAL,
    farewell=st.booleans(),
    own=st.dictionaries(TEXT.filter(lambda key: key not in WIRE_KEYS), SCALARS, max_size=4),
)
TASK: dict[str, Any] = {"round": 1, "learning-rate": 0.1, "batch-size": 5, "local-steps": 3}


# On the wire


@given(config=CONFIGS)
def test_what_is_read_is_what_was_sent(config: FitConfig) -> None:
    """Through Flower's own messages, which carry bool, bytes, float, int and str."""
    instruction = FitIns(Parameters([], "numpy.ndarray"), config.to_wire())
    carried = serde.fit_ins_from_proto(serde.fit_ins_to_proto(instruction)).config
    assert {key: type(value) for key, value in carried.items()} == {
        key: type(value) for key, value in config.to_wire().items()
    }
    assert FitConfig.from_wire(carried) == config


@given(config=CONFIGS)
@example(config=FitConfig(round=1, learning_rate=0.1, batch_size=0, local_steps=3, last_accepted=0))
def test_defaults_are_left_out_and_own_scalars_keep_their_names(config: FitConfig) -> None:
    """Plain SGD sends the common scalars only."""
    sent = config.to_wire()
    assert {key: value for key, value in sent.items() if key not in WIRE_KEYS} == config.own
    changed = {
        **dict.fromkeys(("round", "learning-rate", "batch-size"), True),
        "model-arrays": config.model_arrays,
        "local-steps": config.local_steps,
        "local-epochs": config.local_epochs,
        "rule": config.rule != "sgd",
        "last-accepted": config.last_accepted is not None,
        "farewell": config.farewell,
    }
    assert sent.keys() & WIRE_KEYS == {key for key, differs in changed.items() if differs}


@pytest.mark.parametrize("key", sorted(WIRE_KEYS))
def test_an_own_scalar_cannot_replace_a_common_one(key: str) -> None:
    config = FitConfig(round=1, learning_rate=0.1, batch_size=5, local_steps=3, own={key: 7})
    with pytest.raises(ValueError, match=f"cannot be called '{key}'"):
        config.to_wire()


# What makes no sense


@given(
    config=st.dictionaries(
        st.sampled_from(sorted(WIRE_KEYS)) | TEXT,
        SCALARS | st.floats() | st.integers(0, 9) | st.integers(10**400) | st.none() | st.just([1]),
    )
)
@example(config={**TASK, "round": True})
def test_any_scalars_are_a_task_or_a_value_error(config: dict[str, Any]) -> None:
    try:
        task = FitConfig.from_wire(config)
    except ValueError:
        return
    assert task.round >= 0
    assert 0 <= task.learning_rate < math.inf
    assert task.batch_size >= 0
    assert task.planned_steps(10) > 0
    assert type(task.round) is type(task.batch_size) is type(task.local_steps) is int
    assert all(config[key] is value for key, value in task.to_wire().items())


NO_INTEGER: list[Any] = [True, False, -1, 2.0, math.nan, "3", b"3", None]
IMPOSSIBLE: dict[str, list[Any]] = {
    **dict.fromkeys(sorted(WIRE_KEYS), NO_INTEGER),
    "learning-rate": [True, -0.1, math.nan, math.inf, -math.inf, "0.1", None],
    "rule": [3, True, None, b"sgd"],
    "farewell": [0, 1, "yes", None],
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_an_impossible_value_is_named(key: str) -> None:
    for value in IMPOSSIBLE[key]:
        with pytest.raises(ValueError, match=f"^the task has {key} .*; it must be ") as error:
            FitConfig.from_wire({**TASK, key: value})
        assert repr(value) in str(error.value)


def test_what_is_missing_is_named() -> None:
    for key in ("round", "learning-rate", "batch-size"):
        with pytest.raises(ValueError, match=f"^the task has no '{key}'"):
            FitConfig.from_wire({name: value for name, value in TASK.items() if name != key})
    for config in ({**TASK, "local-steps": 0}, {**TASK, "local-steps": 0, "local-epochs": 0}):
        with pytest.raises(ValueError, match="neither 'local-steps' nor 'local-epochs'"):
            FitConfig.from_wire(config)
    own = FitConfig.from_wire({**TASK, "mu": 0.5}).own
    assert own["mu"] == 0.5
    with pytest.raises(ValueError, match="the task has no 'lambda'"):
        own["lambda"]


# Weights, and how much work


def test_weights_come_before_the_methods_own_arrays() -> None:
    arrays = [np.zeros((2, 3)), np.zeros(3), np.ones(9)]
    weights, own = FitConfig.from_wire({**TASK, "model-arrays": 2}).split(arrays)
    assert [array.shape for array in weights] == [(2, 3), (3,)]
    assert own == arrays[2:]
    assert FitConfig.from_wire(TASK).split(arrays) == (arrays, [])
    with pytest.raises(ValueError, match="the task has 3 arrays; the weights alone are 4"):
        FitConfig.from_wire({**TASK, "model-arrays": 4}).split(arrays)
    with pytest.raises(ValueError, match="the task has 0 arrays; the weights alone are 1"):
        FitConfig.from_wire(TASK).split([])


@given(examples=st.integers(1, 60), size=st.integers(0, 70), epochs=st.integers(0, 5))
def test_planned_steps_are_the_batches_of_all_epochs(examples: int, size: int, epochs: int) -> None:
    """Batch size 0 is one batch per epoch; without epochs, the number of steps is given."""
    task = FitConfig.from_wire({**TASK, "batch-size": size, "local-epochs": epochs, "local-steps": 7})
    of_epoch = len(range(0, examples, size or examples))
    assert task.planned_steps(examples) == (epochs * of_epoch if epochs else 7)
