"""What methods are compared by: the scores of metrics, and the costs to each target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedtide.comparison.results import Row, estimate
from fedtide.comparison.tables import NEVER, REACHED, cost_text, goal_of, mean_and_deviation, number_of
from fedtide.config.target import Target
from fedtide.tasks import Metric


class Measure(NamedTuple):
    """A number of each run that methods are compared by."""

    name: str  # such as `accuracy` or `rounds to 80%`
    unit: str  # what follows the name in a heading; may be empty
    badness: Callable[[Row], Mapping[int, float]]  # by seed, lower is better; infinite: it has none
    text: Callable[[Row], str]  # mean and deviation over seeds
    one_unit: bool = True  # whether differences can be compared between settings


def measures_of(rows: Sequence[Row]) -> list[Measure]:
    """Return the measures that all rows have; not the scores where runs stop at a target."""
    stop = any(cell.settings.stop_at for row in rows for cell, _ in row.runs)
    found = []
    if rows and not stop:
        others = [metric for metric in rows[0].metrics[1:] if all(metric in row.metrics[1:] for row in rows)]
        found = [score_of(rows), *(_of_metric(metric) for metric in others)]
    has_clock = not any(math.isnan(row.cost.virtual_seconds) for row in rows)
    costs = ("rounds", "virtual_seconds") if has_clock else ("rounds",)
    targets = dict.fromkeys(target for row in rows for target in row.reach)
    return found + [_cost_to(target, name, rows) for target in targets for name in costs]


def score_of(rows: Sequence[Row]) -> Measure:
    """Return the measure of the task's metric, which may be another for each task."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    return _of_metric(metrics[0] if len(metrics) == 1 else None)


def _of_metric(metric: Metric | None) -> Measure:
    """Return the measure of the score of a metric; None: that of each task."""

    def badness(row: Row) -> dict[int, float]:
        own = metric or row.metric
        sign, scores = -1 if own.higher_is_better else 1, row.scores_of(own.key)
        return {seed: sign * value if math.isfinite(value) else math.inf for seed, value in scores.items()}

    def text(row: Row) -> str:
        own = metric or row.metric
        return mean_and_deviation(estimate([*row.scores_of(own.key).values()]), number_of(own)[0])

    if metric is None:
        return Measure("metric", "", badness, text, one_unit=False)
    return Measure(metric.title, number_of(metric)[1], badness, text)


def _cost_to(target: Target, name: str, rows: Sequence[Row]) -> Measure:
    """Return the measure of a cost until a target, infinite if it was never reached."""

    def badness(row: Row) -> dict[int, float]:
        costs = [math.inf if cost is None else getattr(cost, name) for cost in row.reached[target]]
        return dict(zip(row.scores, costs, strict=True))

    def text(row: Row) -> str:
        return mean_and_deviation(estimate([*badness(row).values()]), cost_text) or NEVER

    return Measure(f"{REACHED[name]} to {goal_of(target, rows[0].metrics)}", "", badness, text)
