"""The trials of searches: cells with a seed of their own, run side by side as those of a comparison are."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from fedtide.comparison.ranges import Between, Ranges, Values, widened, with_values, written
from fedtide.comparison.runner import PRUNED, Outcome, Runner, Work
from fedtide.comparison.search import Proposal, Pruning, SearchPlan, Trial, distributions, score_of
from fedtide.comparison.store import CellStore
from fedtide.comparison.studies import Studies
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.engine.interrupts import raising_stopped, whole
from fedtide.engine.read_run import Run
from fedtide.ground.wording import say
from fedtide.loggers.progress import progress_bar
from fedtide.tasks import Metric

KEPT = {"config.toml", "metrics.jsonl", "summary.json", PRUNED}  # files of a trial


@dataclass
class Search:
    """The search for the cells that differ in the seed only."""

    cells: Sequence[Cell]
    base: Settings  # of its trials, but for the values that are tried
    plan: SearchPlan
    metric: Metric | None = None  # known with the first trial
    trials: list[Trial] = field(default_factory=list)  # of whole batches
    batch: Sequence[Proposal] = ()
    found: dict[Settings, Trial] = field(default_factory=dict)  # of the batch
    failed: str = ""

    @property
    def name(self) -> str:
        """What distinguishes it from the others."""
        others = self.cells[0].others
        return ", ".join(f"{key} {value}" for key, value in others.items()) or self.base.strategy

    @property
    def wider(self) -> Ranges:
        """The ranges that are searched from the half on: wider where the best value was at an end."""
        ends = self.plan.ends(self.trials[: self.plan.half]) if len(self.trials) >= self.plan.half else {}
        return {
            key: widened(self.base, key, of, ends[key]) if isinstance(of, Between) and key in ends else of
            for key, of in self.plan.ranges.items()
        }

    @property
    def best(self) -> Trial | None:
        """The trial whose values are taken, once the search is over."""
        return self.plan.best(self.trials)

    @property
    def waiting(self) -> list[Settings]:
        """The settings of the trials of the batch that are not known yet, each once."""
        return [one for one in dict.fromkeys(map(self.settings_of, self.batch)) if one not in self.found]

    def settings_of(self, proposal: Proposal) -> Settings:
        """Return the settings of a trial."""
        return with_values(self.base, proposal.values)

    def know(self, metric: Metric) -> None:
        """Take the metric from a run, or from the storage."""
        self.metric, self.plan = metric, replace(self.plan, higher_is_better=metric.higher_is_better)

    def take(self, settings: Settings, run: Run) -> Trial:
        """Take the run of a trial of the batch."""
        self.know(run.metric)
        values = {r["round"]: r[run.metric.key] for r in run.records if run.metric.key in r}
        curve = {number: math.nan if value is None else value for number, value in values.items()}
        proposal = next(one for one in self.batch if self.settings_of(one) == settings)
        taken_from, pruned = distributions(proposal.ranges), (run.path / PRUNED).exists()
        self.found[settings] = Trial(proposal.values, curve, score_of(curve), pruned, taken_from)
        return self.found[settings]

    def end_batch(self) -> list[tuple[int, Trial]]:
        """Add the trials of the batch to those that are known; return them with their numbers."""
        added = [self.found[self.settings_of(proposal)] for proposal in self.batch]
        numbered = [*enumerate(added, start=len(self.trials))]
        self.trials, self.batch, self.found = [*self.trials, *added], (), {}
        return numbered

    @property
    def pruning(self) -> Pruning | None:
        """When a trial of the batch is given up; nothing before the first batch is over."""
        if not self.trials or self.metric is None:
            return None
        curves = [trial.curve for trial in self.trials if not trial.pruned]
        key, higher = self.metric.key, self.metric.higher_is_better
        return Pruning(curves, key, higher, self.base.num_rounds)

    def as_json(self) -> dict[str, Any]:
        """Return what was tried, what was chosen, and on what it was judged."""
        ranges = self.plan.ranges
        return {
            "varied": self.cells[0].others,
            "seed": self.base.seed,
            "validated_on": validation(self.base),
            "metric": self.metric and self.metric.key,
            "ranges": {key: str(of) for key, of in ranges.items()},
            "logarithmic": [key for key, of in ranges.items() if isinstance(of, Between) and of.is_log],
            "widened": {key: str(of) for key, of in self.wider.items() if of != ranges[key]},
            "at_end": self.plan.ends(self.trials),
            "chosen": dict(self.best.values) if self.best else {},
            "trials": [
                {
                    "values": dict(trial.values),
                    "score": trial.score,
                    "pruned": trial.pruned,
                    "rounds": max(trial.curve, default=0),
                }
                for trial in self.trials
            ],
        }


def validation(base: Settings) -> str:
    """Return what the trials are judged on, which the result of the comparison is not."""
    if base.evaluate_on == "test":
        return "the test split of the data set"
    return f"examples that all clients hold out of training ({base.holdout:.0%})"


class Running:
    """Runs searches side by side: the next batch of each as soon as its last one is over."""

    def __init__(
        self,
        searches: Sequence[Search],
        store: CellStore,
        studies: Studies,
        console: Console,
        runner: Runner,
    ) -> None:
        self.searches, self.store, self.studies, self.console = searches, store, studies, console
        self.runner = runner
        self.queue: deque[Work] = deque()
        self.search_of: dict[Settings, Search] = {}  # of what was queued
        self.bar = progress_bar("trial ", console)
        self._task = self.bar.add_task("", total=sum(search.plan.begins[-1] for search in searches))

    def run(self) -> None:
        """Run all trials that are not known yet; Stopped: by a signal. ValueError as of `Studies`."""
        for search in self.searches:
            metric, trials = self.studies.load(search.base, search.plan)
            if metric:
                search.know(metric)
                search.trials = trials[: max(n for n in search.plan.begins if n <= len(trials))]
        with self.bar, raising_stopped():
            for search in self.searches:
                self.bar.update(self._task, advance=len(search.trials))
                self._continue(search)
            self.runner.run(self.queue, self._note)

    def _continue(self, search: Search) -> None:
        """Take the batches that are known, and queue what is to be run of the next one."""
        while not search.waiting:
            if search.batch:
                assert search.metric is not None
                self.studies.add(search.base, search.plan, search.metric, search.end_batch())
            search.batch = search.plan.propose(search.trials, search.wider)
            if not search.batch:
                return
            for settings in search.waiting:
                if (run := self.store.load(settings)) is not None:
                    self._show(search, search.take(settings, run))
        for settings in search.waiting:
            self.search_of[settings] = search
            self.queue.append(Work(settings, self.store.place(settings), search.pruning))

    def _note(self, settings: Settings, outcome: Outcome) -> None:
        """Store the run of a trial, and go on when its batch is over."""
        search = self.search_of[settings]
        if isinstance(outcome, str):
            search.failed = outcome
            say(self.bar.console, f"failed: search, {search.name}: {outcome}")
            return
        with whole():  # a finished trial is kept
            try:
                self.store.save(settings, {name: file for name, file in outcome.items() if name in KEPT})
            except OSError as error:
                search.failed = f"cannot be stored: {error.strerror}"
                return
            if (run := self.store.load(settings)) is None:
                search.failed = "the files of a trial cannot be read"
                return
            self._show(search, search.take(settings, run))
            if not search.waiting:
                self._continue(search)

    def _show(self, search: Search, trial: Trial) -> None:
        self.bar.update(self._task, advance=1)
        if not self.console.is_terminal:
            given_up = f", given up after round {max(trial.curve)}" if trial.pruned else ""
            title = search.metric.title if search.metric else "score"
            say(
                self.bar.console,
                f"trial  {search.name}, {named(trial.values)}: {title} {trial.score:.4f}{given_up}",
            )


def named(values: Values) -> str:
    """Return values in words."""
    return ", ".join(f"{key} {written(value)}" for key, value in values.items())
