"""What a comparison found: means over seeds, intervals, differences to the first method, costs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flexfl.config import Settings
from flexfl.config.grid import Cell
from flexfl.engine.read_run import Run
from flexfl.tasks import Metric

LAST = 10  # evaluations at the end whose mean is reported beside the final value
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds.

    Attributes
    ----------
    mean, deviation
        Mean and standard deviation; NaN where there are too few values.
    margin
        Half the width of the 95 % confidence interval of the mean (Student).
    """

    mean: float
    deviation: float
    margin: float


class Cost(NamedTuple):
    """What a run took up to some round.

    Attributes
    ----------
    rounds, uploads
        Rounds, and replies that counted.
    megabytes_up, megabytes_down
        Sent by and to the clients.
    virtual_seconds
        On the trace's clock; NaN where it has none.
    """

    rounds: float
    uploads: float
    megabytes_up: float
    megabytes_down: float
    virtual_seconds: float


@dataclass(frozen=True)
class Row:
    """The runs of a comparison that differ in the seed only.

    Attributes
    ----------
    varied
        The settings that the comparison varies, but for the seed.
    seeds
        Of the finished runs.
    metric
        What the task reports, such as the accuracy.
    final, last
        Its final value, and that of the last ten evaluations.
    difference
        Of the final value to that of the first strategy, over the seeds that both have; None for the
        first.
    cost
        Of the whole run, mean over seeds.
    reached
        Cost until the value `reach` for each seed, None where it was never reached.
    paper
        The number that a paper reports.
    worst, tenth
        Worst final value on a member's own held-out examples, and the value that 90 % of the members reach;
        None where these are not evaluated.
    """

    varied: Mapping[str, Any]
    seeds: Sequence[int]
    metric: Metric
    final: Estimate
    last: Estimate
    difference: Estimate | None
    cost: Cost
    reached: Sequence[Cost | None] = field(default_factory=list)
    paper: float | None = None
    worst: Estimate | None = None
    tenth: Estimate | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean, standard deviation and the margin of the mean, for values of independent seeds."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Estimate(math.nan, math.nan, math.nan)
    if len(known) == 1:
        return Estimate(known[0], math.nan, math.nan)
    from scipy.stats import t  # takes half a second to import

    deviation = statistics.stdev(known)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return Estimate(statistics.mean(known), deviation, quantile * deviation / math.sqrt(len(known)))


def cost_until(records: Sequence[Mapping[str, Any]], last_round: int) -> Cost:
    """Return what the rounds up to the last one given took."""
    done = [record for record in records if record["round"] <= last_round]
    seconds = [record["virtual_seconds"] for record in done if "virtual_seconds" in record]
    return Cost(
        rounds=last_round,
        uploads=sum(len(record.get("active", [])) for record in done),
        megabytes_up=sum(record.get("bytes_up", 0) for record in done) / 1e6,
        megabytes_down=sum(record.get("bytes_down", 0) for record in done) / 1e6,
        virtual_seconds=max(seconds, default=math.nan),
    )


def cost_to_reach(run: Run, goal: float) -> Cost | None:
    """Return what it took to reach a value of the metric in an evaluation; None if it was never reached."""
    for record in run.records:
        value = record.get(run.metric.key)
        if value is not None and run.metric.reaches(value, goal):
            return cost_until(run.records, record["round"])
    return None


def rows_of(cells: Sequence[Cell], finished: Mapping[Settings, Run], reach: float | None = None) -> list[Row]:
    """Return the rows of all cells that are finished, in the order of the cells."""
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.settings in finished:
            groups[cell.row].append(cell)
    finals = {
        row: {cell.settings.seed: finished[cell.settings].final for cell in of} for row, of in groups.items()
    }
    return [_row(of, finished, finals, _reference(cells, of[0]), reach) for of in groups.values()]


def _row(
    group: Sequence[Cell],
    finished: Mapping[Settings, Run],
    finals: Mapping[tuple[Any, ...], Mapping[int, float]],
    reference: tuple[Any, ...],
    reach: float | None,
) -> Row:
    own, first = finals[group[0].row], finals.get(reference, {})
    runs = [finished[cell.settings] for cell in group]
    metric = runs[0].metric
    costs = [cost_until(run.records, run.records[-1]["round"]) for run in runs]
    return Row(
        varied={key: value for key, value in group[0].varied.items() if key != "seed"},
        seeds=[cell.settings.seed for cell in group],
        metric=metric,
        final=estimate([*own.values()]),
        last=estimate([_last(run) for run in runs]),
        difference=None
        if reference == group[0].row
        else estimate([own[seed] - first[seed] for seed in own if seed in first]),
        cost=Cost(*(statistics.mean(column) for column in zip(*costs, strict=True))),
        reached=[] if reach is None else [cost_to_reach(run, reach) for run in runs],
        paper=group[0].paper,
        worst=_of_clients(runs, f"worst_client_{metric.key}"),
        tenth=_of_clients(runs, f"tenth_percentile_{metric.key}"),
    )


def _reference(cells: Sequence[Cell], cell: Cell) -> tuple[Any, ...]:
    """Return the row of the first strategy with the other settings of a cell; if all have one, its own."""
    if "strategy" not in cell.varied:
        return cell.row
    first = cells[0].settings.strategy
    return tuple(first if key == "strategy" else value for key, value in cell.varied.items() if key != "seed")


def _of_clients(runs: Sequence[Run], key: str) -> Estimate | None:
    found = [run.summary["final"][key] for run in runs if run.summary["final"].get(key) is not None]
    return estimate(found) if found else None


def _last(run: Run) -> float:
    values = [record.get(run.metric.key) for record in run.records if record["round"]]
    evaluated = [value for value in values if value is not None]
    return statistics.mean(evaluated[-LAST:]) if evaluated else math.nan
