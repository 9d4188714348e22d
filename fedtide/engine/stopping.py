"""When a run is evaluated, and when it ends before its last round: it has the answer, or its time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedtide.config import Settings
from fedtide.config.target import OF_MEMBERS, Target
from fedtide.engine.observers import Observer, Record
from fedtide.engine.score import FEWEST, cycle_of, longest_interval, score
from fedtide.tasks import ACCURACY, Metric
from traces import Trace

LONG = 30.0  # seconds
RARER = 10  # times, where evaluations take most of a run


def evaluation_is_due(
    every: int, seconds: float, server_round: int, before: float | None, now: float | None
) -> bool:
    """Whether the weights are evaluated after a round, whether it is the last one or not.

    They are every so many rounds or, if `seconds` is positive and there is a clock, virtual seconds. The
    round ended at `now`, and the one before it at `before`.
    """
    if not seconds or before is None or now is None:
        return server_round % every == 0
    return now // seconds > before // seconds


def slow_evaluation(seconds: Mapping[str, float], settings: Settings, trace: Trace) -> str:
    """Return what to do where evaluations take most of a run; empty: they do not, or nothing helps.

    `seconds` are those of the run by phase; a run of less than `LONG` needs no advice. What is advised suits
    the run's score.
    """
    whole = sum(seconds.values())
    if whole < LONG or seconds.get("evaluate", 0.0) < whole / 2:
        return ""
    unit, now = "every", float(settings.evaluate_every)
    better = float(longest_interval(trace, settings, RARER * settings.evaluate_every))
    if settings.evaluate_seconds:
        unit, now = "seconds", settings.evaluate_seconds
        better = min(RARER * now, cycle_of(trace, settings) / FEWEST or math.inf)
    said = f"evaluation takes more than half of the time: try --evaluate-{unit} {better:g}"
    return said if better > now else ""


class StoppingRule(Observer):
    """Ends a run at a value (`stop-at`), without improvement (`patience`), or after some time.

    Parameters
    ----------
    settings
        Of the run.
    metrics
        What evaluations measure, the task's own metric first. That has to improve, unless `stop-at` names
        something else.
    spent
        Wall-clock seconds of the run before it was resumed.
    cycle
        As of `score`, which is what has to reach the value or to improve, from the end of the first cycle on.

    Attributes
    ----------
    reason : str
        The setting that ends the run, and what has happened; empty: the run goes on.

    Only evaluations that are due by `evaluate-every` or `evaluate-seconds` count. The one after the last
    round, or after a signal, would let a resumed run stop where an uninterrupted one would not.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Sequence[Metric] = (ACCURACY,),
        spent: float = 0.0,
        cycle: float = 0.0,
    ) -> None:
        self.settings, self.spent, self.cycle = settings, spent, cycle
        self.target = Target.parse(settings.stop_at, "stop-at") if settings.stop_at else None
        self.measured = self.target.measured(metrics, "stop-at") if self.target else metrics[0]
        of_members = self.target is not None and self.target.name.startswith(OF_MEMBERS)
        self._every = settings.evaluate_clients if of_members else 1
        self._begin = time.perf_counter()
        self._now: float | None = 0.0  # virtual seconds at the end of the last round
        self._at: list[float] = []
        self._values: list[float] = []
        self._best, self._best_round, self._without = math.nan, 0, 0
        self.reason = ""

    def start(self, settings: Settings) -> None:
        self._begin = time.perf_counter()

    def round(self, record: Record) -> None:
        if self._is_due(record) and self.measured.key in record:
            self._note(record["round"], record[self.measured.key])

    recall = round

    def time_is_up(self, virtual_seconds: float | None) -> bool:
        """Whether the run has had all of its time, virtual seconds (None: no clock) or those of the wall."""
        limits = self.settings
        if virtual_seconds is not None and 0 < limits.until <= virtual_seconds:
            self.reason = f"until: {virtual_seconds:.0f} virtual seconds"
        elif 0 < limits.until_seconds <= (seconds := self.spent + time.perf_counter() - self._begin):
            self.reason = f"until-seconds: {seconds:.1f} s"
        else:
            return False
        return True

    def _is_due(self, record: Record) -> bool:
        server_round, before = record["round"], self._now
        self._now = record.get("virtual_seconds") if server_round else 0.0
        due = (self.settings.evaluate_every, self.settings.evaluate_seconds, server_round, before, self._now)
        return server_round == 0 or (server_round % self._every == 0 and evaluation_is_due(*due))

    def _note(self, server_round: int, found: Any) -> None:
        """Take a value; None and NaN are no improvement."""
        self._at.append(server_round if self._now is None else self._now)
        self._values.append(math.nan if found is None else float(found))
        if self._at[-1] < self.cycle:
            return  # there is no score before the first cycle is over
        value, metric = score(self._at, self._values, self.cycle), self.measured
        if math.isnan(self._best) or (metric.reaches(value, self._best) and value != self._best):
            self._best, self._best_round, self._without = value, server_round, 0
        else:
            self._without += 1
        shown = f"{metric.title} {value:.4g} in round {server_round}"
        if self.target and metric.reaches(value, self.target.value):
            self.reason = f"stop-at: {shown}"
        elif 0 < self.settings.patience <= self._without:
            best = f"the best is {self._best:.4g} in round {self._best_round}"
            self.reason = f"patience: {shown}, {best}"
