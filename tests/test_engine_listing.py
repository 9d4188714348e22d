"""`--list`: every name with its summary and its options, and README's table of the methods."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from registries import KNOWN

import sim
from fedtide.base.specs import bind
from fedtide.cli.listing import methods_by_need
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.federation import Federation
from fedtide.plan import Plan
from fedtide.tasks import MODELS
from strategies import Options
from strategies.apfl import APFL
from strategies.schemes import SchemeC
from traces.recorded import fedscale

FROM_FILE = ("", "recorded", "flash", "flhetbench", "fta", "table", "run")
SMALL: dict[str, Any] = {"engine": "inline", "num_clients": 10, "strategy": "fedavg", "num_rounds": 1}


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
            case _:  # what did not fit the line above
                names[name][1][-1] += f" {text}"
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


def test_the_index_of_methods_has_the_groups_of_list() -> None:
    index = Path(sim.__file__).parent / "docs" / "methods" / "README.md"
    _, *sections = index.read_text(encoding="utf-8").split("\n## ")
    groups = {section.splitlines()[0].lower(): section for section in sections}
    found = {group: re.findall(r"`([a-z0-9-]+)`[,)]", groups[group]) for group in methods_by_need()}
    assert found == methods_by_need()


def test_list_shows_defaults_and_what_is_allowed(shown: Any) -> None:
    assert shown["--option"][""][1] == [
        "outliers=refuse refuse | clip",
        "max-lag=-1 at least -1",
        "stop-late=false true | false",
        "departure=exclude exclude | include | auto",
        f"departure-constant={Options().departure_constant} positive",
    ]
    strategies = {name: options for name, (_, options) in shown["--strategy"].items()}
    assert strategies["fedavg"] == ["server-rate=1.0 positive", "weights=n n | uniform"]
    assert f"reboot-peak={SchemeC.options_type()().reboot_peak} at least 1" in strategies["scheme-c"]
    assert f"alpha={APFL.options_type()().alpha} from 0 to 1" in strategies["apfl"]
    assert {"normalize=true true | false", "table-folder="} <= set(strategies["mifa"])
    assert shown["--trace"]["pools"][1] == ["first=8 from 1 to 8", "source=paper paper | measured"]
    assert "on-interrupt=stop stop | pause" in shown["--trace"]["phones"][1]
    assert "order=random random | sorted" in shown["--partition"]["classes"][1]
    assert shown["--lr-schedule"]["geometric"][1] == ["factor=0.99 above 0 and at most 1"]
    assert "bias=none none | adam | flower" in shown["--server-opt"]["adam"][1]
    assert "repeat=true true | false" in shown["--trace"]["table"][1]
    # What every strategy has, or what has a flag of its own, is not repeated.
    keys = {line.partition("=")[0] for options in strategies.values() for line in options}
    assert not keys & {"departure", "departure-constant", *Settings().as_mapping()}


# What is more than its own bounds say: another option has to go with it.
TOGETHER = {
    ("rates", "cycle"): ",dynamics=cyclic",
    ("labels", "cycle"): ",dynamics=cyclic",
    ("sine", "mean"): ",amplitude=0",
    ("periodic", "period"): ",groups=1",
    ("sessions", "seconds"): ",kind=slots",
    ("sessions", "p"): ",kind=slots",
    ("speeds", "seconds"): ",kind=exponential",
    ("speeds", "low"): ",kind=uniform",
    ("speeds", "high"): ",kind=uniform,low=1e-3",
}


def test_options_are_what_list_says(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedscale, "obtain", lambda folder: [fedscale.shipped_phones()])  # as if downloaded
    for setting in ("partition", "sizes", "lr-schedule", "server-opt"):
        names = {
            name: entry for name, entry in shown[f"--{setting}"].items() if name != "indices"
        }  # of a file
        field = setting.replace("-", "_")
        check_options(
            names, lambda spec, field=field: prepare(Plan.of(Settings(**{**SMALL, field: spec})), tune=False)
        )
    models = {name: entry for name, entry in shown["--model"].items() if name != "hf-lm"}  # of a folder
    check_options(models, make_model)
    check_options(shown["--strategy"], lambda spec: Plan.of(Settings(strategy=spec)))
    traces = {name: entry for name, entry in shown["--trace"].items() if name not in FROM_FILE}
    check_options(traces, lambda spec: Federation.of(Settings(**SMALL, trace=spec)).trace)
    tasks = {"synthetic": shown["--task"]["synthetic"]}
    check_options(tasks, lambda spec: Federation.of(Settings(task=spec)).source)


def make_model(spec: str) -> None:
    with torch.device("meta"):
        bind("model", MODELS, spec).build((5, 3) if spec.startswith("lstm") else (3, 32, 32), 10)


def check_options(names: Any, make: Callable[[str], Any]) -> None:
    """The words and the bounds are accepted; another word or a number beyond is an error by name."""
    checked = 0
    for name, (_, options) in names.items():
        for line in options:
            setting, _, allowed = line.partition(" ")
            key, _, default = setting.partition("=")
            if not allowed:
                continue
            checked += 1
            good, bad = values(allowed)
            others = TOGETHER.get((name, key), "")
            for value in good or [default]:
                make(f"{name}:{key}={value}{others}")
            for value in bad:
                with pytest.raises(ValueError, match=key.replace("-", "[-_]")):
                    make(f"{name}:{key}={value}{others}")
    assert checked


def values(allowed: str) -> tuple[list[str], list[str]]:
    """Values at the edges of what is allowed, and some just beyond."""
    if "|" in allowed:
        return allowed.split(" | "), ["nonesuch"]
    bounds = dict(re.findall(r"(from|to|at least|at most|above|below) (-?\d[\d.e-]*)", allowed))
    bounds |= {"above": "0"} if allowed == "positive" else {}
    assert bounds, allowed
    below = {bounds[word] for word in ("from", "at least") if word in bounds}
    beyond = {bounds[word] for word in ("to", "at most") if word in bounds}
    bad = [bounds[word] for word in ("above", "below") if word in bounds]
    bad += [str(round(float(bound)) - 1) for bound in below]
    bad += [str(round(float(bound)) + 1) for bound in beyond]
    return [*below, *beyond], bad


def test_a_part_that_needs_an_option_is_listed_without(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hf", "csv"):
        assert sim.main(["--list", "--task", name]) == 0
        assert "to be set: " in capsys.readouterr().out
