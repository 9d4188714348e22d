"""Specs, settings and configuration files; numbers that do not fit into the machine."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.base.allowed import options_of
from fedtide.base.specs import bind, parse, parse_options
from fedtide.config import Settings
from fedtide.config.settings import read_toml
from fedtide.engine import memory_check
from fedtide.engine.experiment import prepare
from fedtide.plan import Plan

# Words that a spec can contain: without its separators, and without spaces at either end.
WORDS = st.text(st.characters(exclude_characters=":,=", exclude_categories=["Cs"]), min_size=1).filter(
    lambda word: word == word.strip()
)


@given(st.text())
def test_any_text_is_a_spec_or_a_value_error(text: str) -> None:
    for read in (lambda: parse("trace", text), lambda: parse_options("option", text)):
        try:
            read()
        except ValueError as error:
            message = str(error)
        else:
            continue
        assert message.startswith(("trace ", "option: "))
        assert re.search(r"at character \d+", message)


@given(WORDS, st.dictionaries(WORDS, WORDS))
def test_parsing_inverts_writing(name: str, options: dict[str, str]) -> None:
    text = ":".join(filter(None, [name, ",".join(f"{k}={v}" for k, v in options.items())]))
    spec = parse("trace", text)
    assert (spec.name, dict(spec.options)) == (name, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name is missing at character 1"),
        ("bernoulli:", "option is missing at character 11"),
        ("bernoulli:p", "'p' at character 11"),
        ("a:p=1,,q=2", "'' at character 7"),
        ("a:p=1,p=2", "'p' at character 7 .*twice"),
    ],
)
def test_broken_specs(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^trace '{text}': .*{says}"):
        parse("trace", text)


def test_spaces_around_parts_do_not_matter() -> None:
    spec = parse("trace", " pools : first = 3 , second=4 ")
    assert (spec.name, dict(spec.options)) == ("pools", {"first": "3", "second": "4"})
    assert parse_options("option", "  ") == {}


def factory(size: int, /, *, count: int = 1, rate: float = 0.5, name: str = "x", on: bool = False) -> tuple:
    """Stand for any factory in a registry."""
    return size, count, rate, name, on


REGISTRY = {"one": factory, "none": lambda size: size}


def test_options_have_the_types_that_the_factory_declares() -> None:
    built = bind("thing", REGISTRY, "one:count=3,rate=1e-2,name=a b,on=yes").build(7)
    assert built == (7, 3, 0.01, "a b", True)
    assert [type(value) for value in built] == [int, int, float, str, bool]
    assert bind("thing", REGISTRY, "one").build(7) == (7, 1, 0.5, "x", False)
    part = bind("thing", REGISTRY, "one:rate=2")
    assert (part.name, part.factory, part.options) == ("one", factory, {"rate": 2.0})
    assert list(options_of(factory)) == ["count", "rate", "name", "on"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("two", "unknown thing 'two'; .*one, none"),
        ("one:size=3", "thing one .*'size'; .*count, rate, name, on"),
        ("none:a=1", "thing none has no option 'a'"),
        ("one:count=1.5", "thing one: count is '1.5'"),
        ("one:rate=fast", "thing one: rate is 'fast'"),
        ("one:rate=nan", "thing one: rate is nan"),
        ("one:rate=1e999", "thing one: rate is inf"),
        ("one:on=maybe", "thing one: on is 'maybe'"),
    ],
)
def test_errors_name_the_spec_and_the_option(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bind("thing", REGISTRY, text).build(7)


def test_flower_app_has_the_same_settings_with_the_same_defaults() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    there, here = pyproject["tool"]["flwr"]["app"]["config"], Settings().as_mapping()
    assert list(there) == list(here)
    here |= {"option": "", "metrics": ""}  # Flower has no lists; a string stands for one
    for key, value in here.items():
        assert (there[key], type(there[key])) == (value, type(value)), key


def test_settings_can_be_restored_from_their_mapping() -> None:
    settings = Settings(strategy="fedavg", num_rounds=3, learning_rate=0.5, train_loss=True)
    assert Settings.from_mapping(settings.as_mapping(), "test") == settings
    assert Settings.from_mapping({"learning-rate": 1}, "test").learning_rate == 1.0
    assert Settings.from_mapping({"max-update-norm": 5}, "test").max_update_norm == "5"
    assert all(field.metadata["help"] for field in fields(Settings))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num-round": 3}, "here: unknown setting 'num-round'; known: strategy, option, task"),
        ({"num-rounds": "3"}, "here: num-rounds is '3'; .*int"),
        ({"num-rounds": True}, "here: num-rounds is True; .*int"),
        ({"learning-rate": "0.1"}, "here: learning-rate is '0.1'; .*float"),
        ({"train-loss": 1}, "here: train-loss is 1; .*bool"),
        ({"num-clients": 0}, "num-clients is 0; .*at least 1"),
        ({"clients-per-round": 21}, "clients-per-round is 21; .*num-clients, 20"),
        ({"holdout": 1.0}, "holdout is 1.0; .*below 1"),
        ({"client-gpus": 2}, "client-gpus is 2.0; .*0 to 1"),
        ({"learning-rate": float("inf")}, "learning-rate is inf; .*finite"),
        ({"holdout": float("nan")}, "holdout is nan; .*finite"),
        ({"cohort-size": -(10**400)}, "cohort-size is -1000"),
        ({"evaluate-on": "present "}, "evaluate-on is 'present '; .*did you mean present"),
        ({"evaluate-on": "members"}, "evaluate-on is 'members'; did you mean objective"),
    ],
)
def test_invalid_settings(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        Settings.from_mapping(values, "here")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num-clients": 10**9}, "num-clients is 1000000000: .* 93.1 GB.* 16.0 GB"),
        ({"local-steps": 10**9}, "local-steps is 1000000000: .* 447.0 GB"),
        ({"model": "mlp:hidden=1000000"}, "smaller model"),
        ({"trace": "late:rounds=1000000000000000000"}, "rounds"),
        ({"server-opt": "adam:tau=0"}, "tau is 0"),
        ({"task": "synthetic:mean-size=1000000000"}, "."),
        ({"partition": "dirichlet:alpha=1e308"}, "alpha"),
        ({"sizes": "normal:mean=1e308"}, "."),
    ],
)
def test_what_does_not_fit_is_refused_before_any_of_it_is_taken(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr("fedtide.base.memory.total_memory", lambda: 16 * 2**30)
    small = {"num-clients": 6, "num-rounds": 2, "local-steps": 2, "engine": "inline", "model": "logistic"}
    with pytest.raises(ValueError, match=says) as refusal:
        prepare(Plan.of(Settings.from_mapping({**small, **values}, "here")), tune=False)
    assert "\n" not in str(refusal.value)


def test_what_a_round_takes_is_said_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients of a model of 1 GiB on a machine of 64 GiB, whose disk has 150 GiB left.

    What is sure in the first round is refused where there is too little room, what may come later is said.
    """
    size, there = 2**30, 150 * 2**30
    monkeypatch.setattr("fedtide.base.memory.total_memory", lambda: 64 * 2**30)
    monkeypatch.setattr(memory_check, "replies_limit", lambda: 8 * 2**30)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=there))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_file, room = "the replies of a round lie in a file of 100.0 GB; ", f"{tmp_path} has 150.0 GB left"
    vectors = "the vectors of all clients will take"
    for clients, table, said in (
        (8, (0, 0), ""),
        (8, (0, 150), f"{vectors} 150.0 GB; {room}"),
        (8, (0, 160), f"{vectors} 160.0 GB, for which there is too little room; {room}"),
        (100, (0, 0), f"{in_file}{room}"),
        (100, (50, 50), f"{in_file}{vectors} 50.0 GB; {room}"),
        (100, (0, 60), f"{in_file}{vectors} 60.0 GB, for which there is too little room; {room}"),
    ):
        begin, end = (size * part for part in table)
        assert memory_check.check_round(clients, size, 2, False, (begin, end)) == said
    refused: tuple[Any, ...] = (
        (200, 2, False, 0, f"200 clients, .* 200.0 GB: {room}; free space, set TMPDIR"),
        (100, 2, False, 60, f"at the server 60.0 GB more: {room}"),
        (60, 0, True, 0, "needs 68.0 GB, but this machine has 64.0 GB; use fewer clients a round"),
        (9, 15, False, 0, "needs 68.0 GB, .* use fewer workers"),
    )
    for clients, workers, kept, begin, says in refused:
        with pytest.raises(ValueError, match=says):
            memory_check.check_round(clients, size, workers, kept, (begin * size, begin * size))


def test_configuration_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '\ufeffstrategy = "fedavg"\nnum-rounds = 3\ncommand = ["sim.py"]\n[versions]\nray = "2"\n'
    )
    assert read_toml(str(file)) == {"strategy": "fedavg", "num-rounds": 3}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"num-rounds = ")
    (tmp_path / "latin-1").write_bytes(b"a = '\xe9'")
    says = {"broken": "not TOML", "latin-1": "not TOML", "absent": "No such file", "": "Is a directory"}
    for name, reason in says.items():
        with pytest.raises(ValueError, match=f"^config {re.escape(str(tmp_path / name))}: {reason}"):
            read_toml(str(tmp_path / name))
