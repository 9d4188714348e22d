"""`--tune`: before a comparison, a search of each method's best values, on data that its result does not see.

All methods get as many trials, with the same seed, from the same ranges.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedtide.comparison.ranges import lacking, parse_tune, ranges_of, with_values
from fedtide.comparison.runner import Runner
from fedtide.comparison.search import SearchPlan, require_optuna
from fedtide.comparison.store import CellStore
from fedtide.comparison.studies import Studies
from fedtide.comparison.trials import Running, Search, named, validation
from fedtide.config import Settings
from fedtide.config.grid import TUNE_TRIALS, Cell
from fedtide.engine.interrupts import Stopped
from fedtide.engine.run_folder import finite
from fedtide.federation import Federation
from fedtide.ground.errors import SettingsError
from fedtide.ground.files import replacing
from fedtide.ground.wording import count, say

FOLDER = "tuning"  # of trials and storage, in the folder of the comparison
FILE = "tuning.json"  # what was found
MOST_TRIALS = 1000
FIRST_SEED = 1_000_000  # of the search; the next one that the comparison does not ask for


@dataclass(frozen=True)
class Tuning:
    """What is searched before a comparison: ranges as text by key, and how many trials each method gets."""

    ranges: Mapping[str, str]
    trials: int

    @property
    def identity(self) -> str:
        """Digits that stand for it."""
        return hashlib.sha256(json.dumps([self.ranges, self.trials]).encode()).hexdigest()[:10]

    @classmethod
    def parse(cls, texts: Sequence[str], trials: int = TUNE_TRIALS) -> Tuning:
        """Return what the flags say; ValueError: they are invalid, or Optuna is not installed."""
        if not 2 <= trials <= MOST_TRIALS:
            raise SettingsError(f"tune-trials is {trials}; it must be from 2 to {MOST_TRIALS}")
        require_optuna()
        return cls(parse_tune(texts), trials)


@dataclass(frozen=True)
class Tuned:
    """How the searches ended: the cells with the values chosen, why others have none, and a signal."""

    cells: Sequence[Cell]
    failed: Mapping[Settings, str]
    signal: int = 0


def tuned(
    cells: Sequence[Cell], tuning: Tuning, folder: Path, console: Console, fresh: bool, runner: Runner
) -> Tuned:
    """Search the best values of each method, and return the cells with them; `folder` is the comparison's.

    `fresh` forgets an earlier search, and `runner` runs the trials. ValueError: the ranges do not fit the
    methods, nothing can be held out for validation, or the storage is that of another comparison.
    """
    searches = searches_of(cells, tuning)
    _check_validation([search.base for search in searches])
    if fresh:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    _say_plan(searches, tuning, console)
    place = folder / FOLDER
    running = Running(searches, CellStore(str(place)), Studies(place, folder.name), console, runner)
    try:
        running.run()
    except Stopped as stopped:
        return Tuned([], {}, stopped.number)
    _write(folder, [search.as_json() for search in searches])
    done: list[Cell] = []
    failed: dict[Settings, str] = {}
    for search in searches:
        if search.failed or search.best is None:
            reason = f"search: {search.failed or 'no trial has a number as its result'}"
            failed |= dict.fromkeys((cell.settings for cell in search.cells), reason)
            continue
        _say_chosen(search, console)
        values = search.best.values
        shown = {key: values.get(key, "") for key in tuning.ranges}
        done += [
            replace(cell, settings=with_values(cell.settings, values), tuned=shown) for cell in search.cells
        ]
    return Tuned(done, failed)


def searches_of(cells: Sequence[Cell], tuning: Tuning) -> list[Search]:
    """Return a search for each combination of the varied settings but the seed; ValueError as of `tuned`."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(str(cell.others), []).append(cell)
    if twice := [key for key in tuning.ranges if key in cells[0].varied]:
        raise SettingsError(f"tune {twice[0]}: it has several values as well; give one or the other")
    asked = {cell.settings.seed for cell in cells}
    seed = next(seed for seed in range(FIRST_SEED, FIRST_SEED + len(asked) + 1) if seed not in asked)
    ranges = [ranges_of(group[0].settings, tuning.ranges) for group in groups.values()]
    for key in tuning.ranges:
        if not any(key in own for own in ranges):
            raise SettingsError(lacking(cells[0].settings, key))
    searches = []
    for group, own in zip(groups.values(), ranges, strict=True):
        if not own:
            name, missing = group[0].settings.strategy, ", ".join(tuning.ranges)
            raise SettingsError(f"tune: strategy {name} has no {missing}: there is nothing to search")
        searches.append(Search(group, _base(group[0].settings, seed), SearchPlan(own, tuning.trials, seed)))
    return searches


def _base(settings: Settings, seed: int) -> Settings:
    """Return the settings of trials, which are judged on what the result of the comparison does not see."""
    return replace(
        settings,
        seed=seed,
        evaluate_on="everybody" if settings.evaluate_on == "test" else "test",
        evaluate_clients=0,
        stop_at="",  # values that get there alike differ in what they come to
        patience=0,
        train_loss=False,
        report=False,
        log="",
    )


def _check_validation(bases: Sequence[Settings]) -> None:
    """Refuse data of which no client can hold out any; those of equal settings are divided once."""
    names = ("task", "partition", "sizes", "num_clients", "holdout", "data_dir")
    held_out = [base for base in bases if base.evaluate_on != "test"]
    for base in {tuple(getattr(base, name) for name in names): base for base in held_out}.values():
        data = Federation.of(base).data
        if not any(len(data.holdout(client)[1]) for client in np.arange(base.num_clients)[:, None]):
            raise SettingsError(
                f"tune: there are no validation data: of task {base.task}, each client has one example and "
                "can hold out none; take fewer clients"
            )


def _say_plan(searches: Sequence[Search], tuning: Tuning, console: Console) -> None:
    """Say what is searched, on which data, and for which methods some of it is not."""
    base, trials = searches[0].base, count(searches[0].plan.begins[-1], "trial")
    each = f"{trials} each for {count(len(searches), 'combination')} of settings"
    say(console, f"search: {each}, seed {base.seed}, judged on {validation(base)}")
    for search in searches:
        if missing := [key for key in tuning.ranges if key not in search.plan.ranges]:
            say(console, f"{search.name}: has no {', '.join(missing)}, which is searched for others only")
    logarithmic = {key: str(of) for search in searches for key, of in search.plan.ranges.items() if of.is_log}
    if logarithmic:
        named_ranges = ", ".join(f"{key} {of}" for key, of in logarithmic.items())
        say(console, f"on a logarithmic scale: {named_ranges}")


def _say_chosen(search: Search, console: Console) -> None:
    assert search.best is not None
    line = f"chosen: {search.name}: {named(search.best.values)}"
    for key, of in search.wider.items():
        if of != search.plan.ranges[key]:
            line += f"; {key} was widened to {of}"
    for key, end in search.plan.ends(search.trials).items():
        line += f"; {key} is at the {end} end of {search.wider[key]}, a better value may lie beyond"
    say(console, line)


def _write(folder: Path, searches: Sequence[Mapping[str, Any]]) -> None:
    """Write what was searched and found; ValueError: that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / FILE) as temporary:
            temporary.write_text(
                json.dumps(finite({"searches": searches}), indent=2) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise SettingsError(f"run-dir {folder.parent}: {error.strerror}") from None
