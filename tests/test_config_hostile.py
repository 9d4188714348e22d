"""Numbers and files that a configuration may have: all is usable, or refused in one line, at once."""

import os
import re
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from registries import KNOWN

from flexfl.config import Settings
from flexfl.config.grid import cells
from flexfl.config.settings import read_toml
from flexfl.engine import memory_check as memory
from flexfl.engine.experiment import prepare
from flexfl.engine.methods import own_options, strategy_type
from flexfl.ground.allowed import options_of

SMALL: dict[str, Any] = {
    "num-clients": 6, "num-rounds": 2, "local-steps": 2, "engine": "inline", "model": "logistic"
}  # fmt: skip
NUMBERS = [f.name.replace("_", "-") for f in fields(Settings) if type(f.default) in (int, float)]
EXTREMES = [0, -1, 2, 10**7, 10**9, 10**18, 10**30, -(10**30), 10**400]
EXTREMES += [0.5, -0.5, 5e-324, 1e-200, 1e9, 1e308, float("nan"), float("inf"), -0.0]
NUMERIC = [
    (flag[2:], name, key)
    for flag, known in KNOWN.items()
    if isinstance(known, dict) and flag not in ("--log", "--cohort")
    for name, factory in known.items()
    for key, option in (
        own_options(strategy_type(name)) if flag == "--strategy" else options_of(factory)
    ).items()
    if option.kind in (int, float)
]


def prepares_or_refuses(values: dict[str, Any]) -> None:
    start = time.monotonic()
    try:
        experiment = prepare(Settings.from_mapping({**SMALL, **values}, "here"), tune=False)
        for t in (1, 2):
            experiment.trace.round(t)
            experiment.trace.late(t)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert time.monotonic() - start < 10


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NUMBERS), st.sampled_from(EXTREMES))
@example("num-clients", 10**9)
@example("local-steps", 10**9)
@example("local-epochs", 10**9)
def test_any_number_as_a_setting(key: str, value: float) -> None:
    prepares_or_refuses({key: value})


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(NUMERIC), st.sampled_from(EXTREMES))
@example(("trace", "late", "rounds"), 10**18)
@example(("lr-schedule", "theorem", "work"), 5e-324)
@example(("server-opt", "adam", "tau"), 1e308)
@example(("strategy", "mifa", "table-memory"), 1e308)
@example(("task", "synthetic", "mean-size"), 10**9)
@example(("model", "mlp", "hidden"), 10**9)
@example(("partition", "dirichlet", "alpha"), 1e308)
@example(("sizes", "normal", "mean"), 1e308)
def test_any_number_as_an_option(place: tuple[str, str, str], value: float) -> None:
    kind, name, key = place
    if name in ("mnist", "fashion-mnist"):  # their data may have to be downloaded
        return
    prepares_or_refuses({kind: f"{name}:{key}={value}"})


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of it is taken."""
    monkeypatch.setattr(memory, "total_memory", lambda: 16 * 2**30)
    for values, says in (
        (
            {"num-clients": 10**9},
            "num-clients is 1000000000: that needs 93.1 GB, but this machine has 16.0 GB",
        ),
        ({"local-steps": 10**9}, "local-steps is 1000000000: that needs 447.0 GB"),
        ({"local-epochs": 10**8}, "local-epochs is 100000000: that needs"),
        ({"model": "mlp:hidden=1000000"}, "smaller model"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            prepare(Settings.from_mapping({**SMALL, **values}, "here"), tune=False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b"num-rounds = " + b"1" * 5000, "not TOML: "),
        ("num-rounds = 3".encode("utf-16"), "not TOML: "),
        (b"num-rounds = 3\nstrategy = '\xe9'", "not TOML: line 2 is not UTF-8 text"),
        (b"#" * (5 << 20), "it is larger than 4 MiB"),
    ],
    ids=["lists", "digits", "UTF-16", "Latin-1", "large"],
)
def test_hostile_configuration_files(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    try:
        Settings.from_mapping(read_toml(str(file)), str(file))
    except ValueError as error:
        assert says in str(error)  # noqa: PT017
        assert str(file) in str(error)  # noqa: PT017
        assert len(str(error)) < 3000  # noqa: PT017
    else:
        raise AssertionError("it was read")


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_what_is_no_configuration_file(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    name = str(tmp_path / path) if path == "pipe" else path
    with pytest.raises(ValueError, match=f"^config {re.escape(name)}: "):
        read_toml(name)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfnum-rounds = 3\n")
    assert read_toml(str(tmp_path / "run.toml")) == {"num-rounds": 3}


@pytest.mark.parametrize("paper", [10**400, float("nan"), float("inf"), "1", True, [[]]])
def test_impossible_numbers_of_a_paper(paper: Any) -> None:
    with pytest.raises(ValueError, match="paper of cell 1 is"):
        cells({"cell": [{"paper": paper}]}, "here")


def test_long_values_are_shortened() -> None:
    for key in ("num-rounds", "x" * 10**6, "option"):
        with pytest.raises(ValueError, match="here") as refusal:
            Settings.from_mapping({key: [["y" * 10**6]]}, "here")
        assert len(str(refusal.value)) < 3000
    assert sys.getrecursionlimit() > 500
