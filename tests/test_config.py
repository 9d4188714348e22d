"""Specs, settings and configuration files."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfl.config import Settings
from flexfl.config.settings import read_toml
from flexfl.ground.allowed import options_of
from flexfl.ground.specs import Part, bind, build, parse, parse_options

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


@given(WORDS, st.lists(st.tuples(WORDS, WORDS), unique_by=lambda pair: pair[0]), WORDS)
def test_the_message_gives_the_position_of_the_error(
    name: str, before: list[tuple[str, str]], broken: str
) -> None:
    good = "".join(f"{k}={v}," for k, v in before)
    text = f"{name}:{good}{broken}"
    with pytest.raises(ValueError, match=r"at character \d+ is not key=value") as caught:
        parse("trace", text)
    position = int(re.findall(r"at character (\d+) is not key=value", str(caught.value))[-1])
    assert text[position - 1 :] == broken


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "trace '': a name is missing at character 1"),
        (":p=1", "trace ':p=1': a name is missing at character 1"),
        ("bernoulli:", "trace 'bernoulli:': an option is missing at character 11"),
        ("bernoulli:p", "trace 'bernoulli:p': 'p' at character 11 is not key=value"),
        ("a:p=1,,q=2", "trace 'a:p=1,,q=2': '' at character 7 is not key=value"),
        ("a:p=", "trace 'a:p=': 'p=' at character 3 is not key=value"),
        ("a:=1", "trace 'a:=1': '=1' at character 3 is not key=value"),
        ("a:p=1,p=2", "trace 'a:p=1,p=2': 'p' at character 7 is given twice"),
    ],
)
def test_broken_specs(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
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
    built = build("thing", REGISTRY, "one:count=3,rate=1e-2,name=a b,on=yes", 7)
    assert built == (7, 3, 0.01, "a b", True)
    assert [type(value) for value in built] == [int, int, float, str, bool]
    assert build("thing", REGISTRY, "one", 7) == (7, 1, 0.5, "x", False)
    assert bind("thing", REGISTRY, "one:rate=2") == Part("one", factory, {"rate": 2.0})
    assert list(options_of(factory)) == ["count", "rate", "name", "on"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("two", "unknown thing 'two'; known: one, none"),
        ("one:size=3", "thing one has no option 'size'; known: count, rate, name, on"),
        ("none:a=1", "thing none has no option 'a'; it has none"),
        ("one:count=1.5", "thing one: count is '1.5'; it must be a whole number"),
        ("one:rate=fast", "thing one: rate is 'fast'; it must be a number"),
        ("one:rate=nan", "thing one: rate is nan; it must be a finite number"),
        ("one:rate=1e999", "thing one: rate is inf; it must be a finite number"),
        ("one:on=maybe", "thing one: on is 'maybe'; it must be true or false"),
    ],
)
def test_errors_name_the_spec_and_the_option(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        build("thing", REGISTRY, text, 7)


@given(st.text(), st.text())
def test_any_option_value_is_converted_or_a_value_error(key: str, value: str) -> None:
    for option in ("count", "rate", "on", key):
        try:
            build("thing", REGISTRY, f"one:{option}={value}", 7)
        except ValueError:
            continue


def test_flower_app_has_the_same_settings_with_the_same_defaults() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    there, here = pyproject["tool"]["flwr"]["app"]["config"], Settings().as_mapping()
    assert list(there) == list(here)
    here["option"] = ""  # Flower has no lists; a string stands for one
    assert [(value, type(value)) for value in there.values()] == [
        (value, type(value)) for value in here.values()
    ]


def test_settings_can_be_restored_from_their_mapping() -> None:
    settings = Settings(strategy="fedavg", num_rounds=3, learning_rate=0.5, train_loss=True)
    assert Settings.from_mapping(settings.as_mapping(), "test") == settings
    assert Settings.from_mapping({"learning-rate": 1}, "test").learning_rate == 1.0
    assert all(field.metadata["help"] for field in fields(Settings))


TESTED_ON = "test, present, objective, everybody"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num-round": 3}, "here: unknown setting 'num-round'; known: strategy, option, task"),
        ({"num_rounds": 3}, "here: unknown setting 'num_rounds'"),
        ({"num-rounds": "3"}, "here: num-rounds is '3'; it must be of type int"),
        ({"num-rounds": 3.0}, "here: num-rounds is 3.0; it must be of type int"),
        ({"num-rounds": True}, "here: num-rounds is True; it must be of type int"),
        ({"learning-rate": "0.1"}, "here: learning-rate is '0.1'; it must be of type float"),
        ({"train-loss": 1}, "here: train-loss is 1; it must be of type bool"),
        ({"strategy": ["fedavg"]}, "here: strategy is ['fedavg']; it must be of type str"),
        ({"num-clients": 0}, "num-clients is 0; it must be at least 1"),
        ({"num-rounds": 0}, "num-rounds is 0; it must be at least 1"),
        ({"num-workers": -1}, "num-workers is -1; it must be at least 0"),
        ({"clients-per-round": 21}, "clients-per-round is 21; it must be at most num-clients, 20"),
        ({"holdout": 1.0}, "holdout is 1.0; it must be above 0 and below 1"),
        ({"client-gpus": 2}, "client-gpus is 2.0; it must be from 0 to 1"),
        ({"learning-rate": float("inf")}, "learning-rate is inf; it must be a finite number"),
        ({"holdout": float("nan")}, "holdout is nan; it must be a finite number"),
        ({"cohort-size": -(10**400)}, "cohort-size is -1000"),
        ({"engine": "spark"}, "engine is 'spark'; choose one of auto, ray, inline"),
        ({"evaluate-on": "train"}, f"evaluate-on is 'train'; choose one of {TESTED_ON}"),
        (
            {"evaluate-on": "present "},
            f"evaluate-on is 'present '; choose one of {TESTED_ON}; did you mean present?",
        ),
        ({"evaluate-on": "members"}, "evaluate-on is 'members'; did you mean objective?"),
    ],
)
def test_invalid_settings(values: dict, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        Settings.from_mapping(values, "here")


def test_configuration_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('strategy = "fedavg"\nnum-rounds = 3\ncommand = ["sim.py"]\n[versions]\nray = "2"\n')
    assert read_toml(str(file)) == {"strategy": "fedavg", "num-rounds": 3}


@pytest.mark.parametrize("content", [b"num-rounds = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^config {re.escape(str(file))}: not TOML: "):
        read_toml(str(file))


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.toml: No such file or directory$"):
        read_toml(str(tmp_path / "nothing.toml"))
    with pytest.raises(ValueError, match=r": Is a directory$"):
        read_toml(str(tmp_path))
