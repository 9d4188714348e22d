"""`--tune`: before a comparison, a search of each method's best values, on data that its result does not see.

All methods get as many trials, with the same seed, from the same ranges.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedtide.base.errors import SettingsError
from fedtide.base.wording import count, say
from fedtide.comparison.ranges import OPTION, Values, parse_tune, ranges_of, refuse, with_values, written
from fedtide.comparison.runner import Outcome, Runner, Work
from fedtide.comparison.search import PRUNED, Search, Tried, require_optuna
from fedtide.comparison.store import CellStore, write_texts
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.engine.interrupts import raising_stopped, whole
from fedtide.engine.run_folder import finite
from fedtide.federation import Federation
from fedtide.loggers.progress import Pace, progress_bar
from fedtide.plan import Plan

FOLDER = "tuning"  # of the trials, in the folder of the comparison
KEPT = {"config.toml", "metrics.jsonl", "summary.json", PRUNED}  # files of a trial
FILE = "tuning.json"  # what was found
MOST_TRIALS = 1000
MOST_SEEDS = 100
FIRST_SEED = 1_000_000  # of the search, and the next ones; not those that the comparison asks for


@dataclass(frozen=True)
class Tuning:
    """The search before a comparison."""

    ranges: Mapping[str, str]  # as text by key
    trials: int  # for each method
    goal: str  # key of the metric that is searched for; empty: the task's own
    seeds: int  # over which the score of a trial is the mean

    @property
    def identity(self) -> str:
        """Digits that stand for it."""
        others = [*filter(None, [self.goal]), *([self.seeds] if self.seeds > 1 else [])]
        return hashlib.sha256(json.dumps([self.ranges, self.trials, *others]).encode()).hexdigest()[:10]

    @classmethod
    def parse(cls, texts: Sequence[str], trials: int, goal: str, seeds: int) -> Tuning:
        """Read the flags; ValueError: they are invalid, or Optuna is not installed."""
        if not 2 <= trials <= MOST_TRIALS:
            raise SettingsError(f"tune-trials is {trials}; it must be from 2 to {MOST_TRIALS}")
        if not 1 <= seeds <= MOST_SEEDS:
            raise SettingsError(f"tune-seeds is {seeds}; it must be from 1 to {MOST_SEEDS}")
        require_optuna()
        return cls(parse_tune(texts), trials, goal, seeds)


def tuned(
    cells: Sequence[Cell], tuning: Tuning, folder: Path, console: Console, fresh: bool, runner: Runner
) -> tuple[list[Cell], dict[Settings, str]]:
    """Search the best values of each method; return the cells with them, and why other cells have none.

    `folder` is the comparison's, `fresh` forgets an earlier search, and `runner` runs the trials. ValueError:
    the ranges do not fit the methods, or nothing can be held out for validation. Stopped: by a signal.
    """
    searches = searches_of(cells, tuning)
    _check_validation([search.base for search in searches])
    if fresh:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    _say_plan(searches, tuning, console)
    _Trials(searches, CellStore(str(folder / FOLDER)), console).run(runner)
    found = finite({"searches": [_as_json(search) for search in searches]})
    write_texts(folder, {FILE: json.dumps(found, indent=2) + "\n"})
    done: list[Cell] = []
    failed: dict[Settings, str] = {}
    for search in searches:
        if search.failed or (best := search.best()) is None:
            reason = f"search: {search.failed or 'no trial has a number as its result'}"
            failed |= dict.fromkeys((cell.settings for cell in search.cells), reason)
            continue
        _say_chosen(search, best.values, console)
        values = best.values
        shown = {key: values.get(key, "") for key in tuning.ranges}
        done += [
            replace(cell, settings=with_values(cell.settings, values), tuned=shown) for cell in search.cells
        ]
    return done, failed


def searches_of(cells: Sequence[Cell], tuning: Tuning) -> list[Search]:
    """Return a search for each combination of the varied settings but the seed; ValueError as of `tuned`."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(str(cell.others), []).append(cell)
    if twice := [key for key in tuning.ranges if key in cells[0].varied]:
        raise SettingsError(f"tune {twice[0]}: it has several values as well; give one or the other")
    for cell in cells if tuning.goal else ():
        if tuning.goal not in (known := [f.metric.key for f in Plan.of(cell.settings).functions]):
            listed = f"they are {', '.join(known)}" if known else "there are none"
            raise SettingsError(f"tune-for is {tuning.goal!r}, which is not one of --metrics: {listed}")
    asked = {cell.settings.seed for cell in cells}
    free = (seed for seed in itertools.count(FIRST_SEED) if seed not in asked)
    seeds = [*itertools.islice(free, tuning.seeds)]
    ranges = [ranges_of(group[0].settings, tuning.ranges) for group in groups.values()]
    for key in tuning.ranges:
        if not any(key in own for own in ranges):
            refuse(cells[0].settings, key)
    searches = []
    for group, own in zip(groups.values(), ranges, strict=True):
        if not own:
            name, missing = group[0].settings.strategy, ", ".join(tuning.ranges)
            raise SettingsError(f"tune: strategy {name} has no {missing}: there is nothing to search")
        bases = [_base(group[0].settings, seed) for seed in seeds]
        searches.append(Search(group, bases, own, tuning.trials, tuning.goal))
    return searches


class _Trials:
    """Runs the trials of searches side by side: the next batch of each as soon as its last one is over.

    The run folders of the trials are all that is kept: a search that was interrupted proposes the same again.
    """

    def __init__(self, searches: Sequence[Search], store: CellStore, console: Console) -> None:
        self.searches, self.store, self.console = searches, store, console
        self.queue: deque[Work] = deque()
        self.search_of: dict[Settings, Search] = {}  # of what was queued
        self.bar = progress_bar("trial ", console)
        self._task = self.bar.add_task("", total=sum(s.total * len(s.bases) for s in searches))
        self._pace = Pace()

    def run(self, runner: Runner) -> None:
        """Run all trials that are not stored yet; Stopped: by a signal."""
        with self.bar, raising_stopped():
            for search in self.searches:
                self._continue(search)
            runner.run(self.queue, self._note)

    def _continue(self, search: Search) -> None:
        """Go on to the first batch of which not all trials are stored, and queue what it lacks."""
        while not search.waiting:
            search.go_on()
            if not search.batch:
                return
            for settings in search.waiting:
                if (run := self.store.load(settings)) is not None:
                    search.take(settings, run)
            known = len(search.batch) * len(search.bases) - len(search.waiting)
            self.bar.update(self._task, advance=known)
        for settings in search.waiting:
            self.search_of[settings] = search
            self.queue.append(Work(settings, self.store.place(settings), search.pruning(settings)))

    def _note(self, settings: Settings, outcome: Outcome) -> None:
        """Store the run of a trial, and go on when its batch is over."""
        search = self.search_of[settings]
        with whole():  # a finished trial is kept
            if not isinstance(outcome, str):
                outcome = {name: file for name, file in outcome.items() if name in KEPT}
            found = self.store.keep(settings, outcome)
            if isinstance(found, str):
                search.failed = found
                say(self.bar.console, f"failed: search, {search.name}: {found}")
                return
            self._show(search, settings, search.take(settings, found))
            if not search.waiting:
                self._continue(search)

    def _show(self, search: Search, settings: Settings, run: Tried) -> None:
        best = search.best(search.done)
        shown = f"best {best.score:.4f} {search.name}, {_named(best.values)}" if best else ""
        self.bar.update(self._task, advance=1, description=shown)
        (task,) = self.bar.tasks
        left = self._pace.left(task)
        if not self.console.is_terminal and search.metric:
            given_up = f", given up after round {max(run.curve)}" if run.pruned else ""
            score = f"{search.metric.title} {run.score:.4f}{given_up}"
            tried = _named(search.values_of(settings))
            seed = f", seed {settings.seed}" if len(search.bases) > 1 else ""
            number = f"trial {task.completed:.0f}/{task.total:.0f}"
            say(self.bar.console, f"{number}  {search.name}, {tried}{seed}: {score}{left}")


def _base(settings: Settings, seed: int) -> Settings:
    """Return the settings of trials, which are judged on data that the results do not use."""
    return replace(
        settings,
        seed=seed,
        evaluate_on="everybody" if settings.evaluate_on == "test" else "test",
        evaluate_clients=0,
        stop_at="",  # values that get there alike differ in what they come to
        patience=0,
        train_loss=False,
        report="none",
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
    """Print the number of trials, their data, and the keys that some methods lack."""
    base, trials = searches[0].base, count(searches[0].total, "trial")
    each = f"{trials} each for {count(len(searches), 'combination')} of settings"
    seeds = f"seed {base.seed}" + (f" to {last}" if (last := searches[0].bases[-1].seed) != base.seed else "")
    say(console, f"search: {each}, {seeds}, judged on {_validation(base)}")
    for search in searches:
        if missing := [key for key in tuning.ranges if key not in search.ranges]:
            say(console, f"{search.name}: has no {', '.join(missing)}, which is searched for others only")
    default = Settings()
    for name in (key.replace("-", "_") for key in tuning.ranges if not key.startswith(OPTION)):
        if (value := getattr(base, name)) != getattr(default, name):
            say(console, f"{name.replace('_', '-')} {value} is replaced by what the search finds")
    logarithmic = {key: str(of) for search in searches for key, of in search.ranges.items() if of.is_log}
    if logarithmic:
        named_ranges = ", ".join(f"{key} {of}" for key, of in logarithmic.items())
        say(console, f"on a logarithmic scale: {named_ranges}")


def _say_chosen(search: Search, values: Values, console: Console) -> None:
    line = f"chosen: {search.name}: {_named(values)}"
    for key, of in search.wider.items():
        if of != search.ranges[key]:
            line += f"; {key} was widened to {of}"
    for key, end in search.ends().items():
        line += f"; {key} is at the {end} end of {search.wider[key]}, a better value may lie beyond"
    say(console, line)


def _named(values: Values) -> str:
    """Return values in words."""
    return ", ".join(f"{key} {written(value)}" for key, value in values.items())


def _validation(base: Settings) -> str:
    """Describe the data that trials are judged on, which the results of the comparison do not use."""
    if base.evaluate_on == "test":
        return "the test split of the data set"
    return f"examples that all clients hold out of training ({base.holdout:.0%})"


def _as_json(search: Search) -> dict[str, Any]:
    """Return the trials, the chosen values and the data they were judged on, for `tuning.json`."""
    ranges, wider = search.ranges, search.wider
    return {
        "varied": search.cells[0].others,
        "seeds": [base.seed for base in search.bases],
        "validated_on": _validation(search.base),
        "metric": search.metric and search.metric.key,
        "ranges": {key: str(of) for key, of in ranges.items()},
        "logarithmic": [key for key, of in ranges.items() if of.is_log],
        "widened": {key: str(of) for key, of in wider.items() if of != ranges[key]},
        "at_end": search.ends(),
        "chosen": dict(best.values) if (best := search.best()) else {},
        "trials": [
            {
                "values": dict(trial.values),
                "score": trial.score,
                "pruned": trial.pruned,
                "rounds": max(trial.curve, default=0),
            }
            for trial in search.trials
        ],
    }
