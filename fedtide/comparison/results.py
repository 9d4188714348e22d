"""What a comparison found: means over seeds, intervals, differences to the baseline, curves, costs.

Costs are counted to the end, and to targets, which `targets_of` checks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from fedtide.base.errors import SettingsError
from fedtide.comparison.methods import (
    Baseline,
    Varied,
    combinations,
    key_of,
    label_of,
    method_of,
    reference_of,
)
from fedtide.config.grid import Cell
from fedtide.config.target import LOSSES, Target
from fedtide.engine.history import Cost
from fedtide.engine.read_run import Run
from fedtide.plan import Plan
from fedtide.tasks import ACCURACY, Metric

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds; NaN where there are too few values."""

    mean: float
    deviation: float  # standard deviation
    margin: float  # half the width of the 95 % confidence interval of the mean (Student)
    seeds: tuple[int, int]  # how many have a value, of how many

    @property
    def contains_zero(self) -> bool:
        """Whether 0 is in the interval; of a single value, there is none."""
        return abs(self.mean) <= self.margin


class CellRun(NamedTuple):
    """A cell of a comparison, and its run."""

    cell: Cell
    run: Run


@dataclass(frozen=True)
class Row:
    """The runs of a comparison that differ in the seed only, and the numbers that are compared."""

    runs: Sequence[CellRun]
    difference: Estimate | None = None  # of the score to the baseline's; None: it is the baseline
    reach: Sequence[Target] = ()
    versus: str = ""  # the label of the baseline

    @property
    def varied(self) -> Mapping[str, Any]:
        """The settings that the comparison varies, other than the seed."""
        return self.runs[0].cell.others

    @property
    def tuned(self) -> Mapping[str, Any]:
        """The values that a search has chosen, by key."""
        return self.runs[0].cell.tuned

    @property
    def paper(self) -> float | None:
        """The number that a paper reports."""
        return self.runs[0].cell.paper

    @property
    def metric(self) -> Metric:
        """What the task reports, such as the accuracy."""
        return self.metrics[0]

    @property
    def metrics(self) -> Sequence[Metric]:
        """That, and the metrics of the setting of this name."""
        return self.runs[0].run.measured

    @property
    def scores(self) -> dict[int, float]:
        """The score of the metric by seed."""
        return self.scores_of(self.metric.key)

    @cached_property
    def others(self) -> Mapping[Metric, Estimate]:
        """The scores of the other metrics."""
        return {metric: estimate([*self.scores_of(metric.key).values()]) for metric in self.metrics[1:]}

    def scores_of(self, key: str) -> dict[int, float]:
        """Return the score of a key by seed; NaN: there is none. See `fedtide.engine.score`."""
        return {cell.settings.seed: run.score(key) for cell, run in self.runs}

    @cached_property
    def score(self) -> Estimate:
        """The score of the metric."""
        return estimate([*self.scores.values()])

    @property
    def badness(self) -> float:
        """The score, negative if higher ones are better; infinite if there is none."""
        mean = self.score.mean
        return math.inf if math.isnan(mean) else -mean if self.metric.higher_is_better else mean

    @cached_property
    def cost(self) -> Cost:
        """The cost of the whole run, mean over seeds."""
        return _mean([run.history.cost(-1) for _, run in self.runs])

    @cached_property
    def reached(self) -> dict[Target, list[Cost | None]]:
        """The cost until each target for each seed, None where it was never reached."""
        return {target: [cost_to_reach(run, target) for _, run in self.runs] for target in self.reach}

    def reaching(self, target: Target) -> int:
        """Return how many seeds reached a target."""
        return sum(cost is not None for cost in self.reached[target])

    def cost_to(self, target: Target) -> Cost:
        """Return the cost until a target, mean over the seeds that reached it; infinite if none did."""
        reached = [cost for cost in self.reached[target] if cost is not None]
        never = Cost(*(math.nan if math.isnan(whole) else math.inf for whole in self.cost))
        return _mean(reached) if reached else never

    @property
    def worst(self) -> Estimate | None:
        """The worst score on a member's own held-out examples; None where these are not evaluated."""
        return self._of_clients("worst_client")

    @property
    def tenth(self) -> Estimate | None:
        """Likewise, the value that 90 % of the members reach."""
        return self._of_clients("tenth_percentile")

    def _of_clients(self, name: str) -> Estimate | None:
        found = estimate([*self.scores_of(f"{name}_{self.metric.key}").values()])
        return None if math.isnan(found.mean) else found

    def against(self, other: Row | None) -> Estimate:
        """Return the difference of the scores, over the seeds that both have."""
        return paired(self.scores, {} if other is None else other.scores)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, for `--json`."""
        estimates = {key: getattr(self, key) for key in ("score", "difference", "worst", "tenth")}
        return {
            "varied": self.varied,
            "seeds": [*self.scores],
            "metric": self.metric.key,
            "paper": self.paper,
            **({"tuned": self.tuned} if self.tuned else {}),
            "cost": self.cost._asdict(),
            "reached": {
                str(target): [cost and cost._asdict() for cost in costs]
                for target, costs in self.reached.items()
            },
            **{key: value and value._asdict() for key, value in estimates.items()},
            "others": {metric.key: value._asdict() for metric, value in self.others.items()},
        }


def rows_of(
    finished: Sequence[CellRun],
    baseline: Baseline | None = None,
    reach: Sequence[Target] = (),
    lacking: Sequence[Varied] = (),
) -> list[Row]:
    """Return the rows of finished runs.

    `baseline` is what they are compared to, by default the first method. `lacking` are the combinations that
    are not finished: what is to be compared to one of them is compared to no other.
    """
    groups: dict[str, list[CellRun]] = defaultdict(list)
    for one in finished:
        groups[key_of(one.cell.others)].append(one)
    every = combinations([*(group[0].cell.others for group in groups.values()), *lacking])
    if baseline is None:
        baseline = method_of(next(iter(every.values()), {}))
    rows = {key: Row(group, None, reach, label_of(baseline)) for key, group in groups.items()}
    found = []
    for key, row in rows.items():
        reference = reference_of(row.varied, baseline, every)
        found.append(row if reference == key else replace(row, difference=row.against(rows.get(reference))))
    return found


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean, standard deviation and the margin of the mean, for values of independent seeds."""
    known = [value for value in values if math.isfinite(value)]
    seeds = len(known), len(values)
    if not known:
        return Estimate(math.nan, math.nan, math.nan, seeds)
    if len(known) == 1:
        return Estimate(known[0], math.nan, math.nan, seeds)
    from scipy.stats import t  # takes half a second to import

    deviation = statistics.stdev(known)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    margin = quantile * deviation / math.sqrt(len(known))
    return Estimate(statistics.mean(known), deviation, margin, seeds)


def paired(own: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """Return the difference of values by seed, over the seeds that both have."""
    return estimate([value - theirs[seed] for seed, value in own.items() if seed in theirs])


def cost_to_reach(run: Run, target: Target) -> Cost | None:
    """Return the cost until the score first reaches a target; None if it never did.

    A run that stopped for lack of improvement, or because its time was up, has not reached it.
    """
    metric = target.measured(run.measured, "reach")
    reached = [row for row, score in run.scores(metric.key) if metric.reaches(score, target.value)]
    return run.history.cost(reached[-1]) if reached else None


def _mean(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.mean(column) for column in zip(*costs, strict=True)))


def parse_targets(given: Iterable[float | str]) -> list[Target]:
    """Read values of the metric, such as 0.8, and targets such as `loss=0.5`; ValueError: it is neither."""
    targets = [Target.parse(str(text), "reach", needs_name=False) for text in given]
    for target in targets:
        if target.value < 0 and not target.name:
            raise SettingsError(f"reach is {target}; it must be at least 0, or NAME=VALUE")
    return list(dict.fromkeys(targets))


def targets_of(cells: Sequence[Cell], reach: Sequence[Target]) -> list[Target]:
    """Return the targets of a comparison: those given, else the one at which all of its cells stop.

    ValueError: its runs do not evaluate one of them, or some stop before they can reach it.
    """
    stops = {cell.settings.stop_at for cell in cells}
    reach = [*reach] or [Target.parse(stop, "stop-at") for stop in stops if len(stops) == 1 and stop]
    for cell in cells:
        for target in reach:
            target.check(cell.settings, "reach")
    for cell in {cell.settings.task: cell for cell in reversed(cells)}.values():
        _check_targets(cell, reach, [Target.parse(stop, "stop-at") for stop in sorted(stops) if stop])
    return reach


def _check_targets(cell: Cell, reach: Sequence[Target], stops: Sequence[Target]) -> None:
    """Check targets for a task, whose data are loaded if that needs its metric."""
    named = {target.name for target in (*reach, *stops)} - {"", *LOSSES}
    metrics = Plan.of(cell.settings).metrics if named else (ACCURACY,)
    measured = {target: target.measured(metrics, "reach") for target in reach}
    for stop in stops:
        own = stop.measured(metrics, "stop-at")
        for target, its in measured.items():
            if its.key == own.key and not its.reaches(stop.value, target.value):
                raise SettingsError(f"reach {target}: runs end before, at stop-at {stop}; give one of them")
