"""`--list`: every name with its summary and its options, and README's table of the methods."""

from pathlib import Path
from typing import Any

import pytest
from registries import KNOWN

import sim
from flexfl.config import Settings
from flexfl.engine.listing import methods_by_need
from flexfl.engine.run import strategy_options
from strategies import STRATEGIES, Options
from strategies.apfl import APFL
from strategies.schemes import SchemeC


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, tuple[list[str], list[str]]]]:
    """What `--list` prints: by flag and by name, the lines of the summary and of the options."""
    assert sim.main(["--list"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown: dict[str, Any] = {}
    for line in filter(None, lines):
        text = " ".join(line.split())
        match len(line) - len(line.lstrip()):
            case 0:
                names = shown.setdefault(text.partition(",")[0], {"": ([], [])})
                name = ""
            case 2:
                name = text
                names[name] = ([], [])
            case 4:
                names[name][0].append(text)
            case 6:
                names[name][1].append(text)
    return shown


def test_list_shows_every_name_with_its_summary(shown: Any) -> None:
    for flag, registry in KNOWN.items():
        if isinstance(registry, dict):
            assert list(shown[flag]) == ["", *registry]
            for name, factory in registry.items():
                summary, suits = " ".join(shown[flag][name][0]), ""
                if flag == "--strategy":
                    summary, found, suits = summary.partition(f" For {factory.suits}.")
                    assert factory.suits
                    assert found
                assert " ".join(factory.__doc__.split()).startswith(summary)
                assert summary
                assert not suits


def test_readme_has_the_methods_in_the_groups_of_list() -> None:
    table = (Path(sim.__file__).parent / "README.md").read_text().partition("| `--strategy` |")[2]
    groups: dict[str, list[str]] = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        name, what, suits, _ = (cell.strip(" `*") for cell in line.strip("|").split("|"))
        if not name:
            names = groups.setdefault(what, [])
        else:
            names.append(name)
            assert suits == STRATEGIES[name].suits
    assert groups == methods_by_need()


def test_list_shows_defaults_and_what_is_allowed(shown: Any) -> None:
    assert shown["--option"][""][1] == [
        "departure=exclude exclude | include | auto",
        f"departure-constant={Options().departure_constant} positive",
    ]
    strategies = {name: options for name, (_, options) in shown["--strategy"].items()}
    assert strategies["fedavg"] == ["weights=n n | uniform", "server-rate=1.0 positive"]
    assert f"reboot-peak={SchemeC.options_type()().reboot_peak} at least 1" in strategies["scheme-c"]
    assert f"alpha={APFL.options_type()().alpha} from 0 to 1" in strategies["apfl"]
    assert {"normalize=true true | false", "table-folder="} <= set(strategies["mifa"])
    assert "first=8" in shown["--trace"]["pools"][1]
    assert "repeat=true true | false" in shown["--trace"]["table"][1]
    # What every strategy has, or what has a flag of its own, is not repeated.
    keys = {line.partition("=")[0] for options in strategies.values() for line in options}
    assert not keys & {"departure", "departure-constant", *Settings().as_mapping()}


def test_what_list_says_is_allowed_is_accepted_and_nothing_else(shown: Any) -> None:
    for name, (_, options) in shown["--strategy"].items():
        for line in options:
            setting, _, allowed = line.partition(" ")
            key, _, default = setting.partition("=")
            if not allowed:
                continue
            words = allowed.split(" | ") if "|" in allowed else []
            for value in words or [default]:
                strategy_options(Settings(strategy=f"{name}:{key}={value}"))
            with pytest.raises(ValueError, match=key):
                strategy_options(Settings(strategy=f"{name}:{key}={'nonesuch' if words else -2}"))
