"""The long table of a comparison, a line for each row: for the terminal, and as Markdown and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedtide.base.tables import csv_text
from fedtide.comparison.methods import shown_value
from fedtide.comparison.ranges import written
from fedtide.comparison.results import Estimate, Row
from fedtide.config import Settings
from fedtide.config.target import Target
from fedtide.tasks import Metric

Columns = Mapping[str, str]
"""The cells of one row, by the headings of their columns."""

IN_FILES_ONLY = ("runs", "uploads", "MB")  # headings that begin so: a terminal has room for few

LEFT_OUT = ("10th percentile", "worst client", "virtual s to", "95 %")  # if it is narrow

SETTINGS = {field.name.replace("_", "-") for field in fields(Settings)}

NEVER = "never"
COSTS = "Costs until the score reaches the target: means over the seeds that did."

REACHED = {
    "rounds": "rounds",
    "uploads": "uploads",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "local_steps": "local steps",
    "device_seconds": "device s",
    "virtual_seconds": "virtual s",
}


def columns(row: Row) -> Columns:
    """Return the texts of a row, with shares in percent."""
    number, unit = number_of(row.metric)
    plus = _signed(number)

    def within(value: float) -> str:  # the interval of a share ends at 0 and 1
        return number(min(max(value, 0.0), 1.0) if row.metric.is_share else value)

    shown = _texts(row)
    shown |= {
        "runs": str(len(row.runs)),
        f"{row.metric.title}{unit}": mean_and_deviation(row.score, number),
        "95 % interval": _ends(row.score, within),
        f"worst client{unit}": mean_and_deviation(row.worst, number),
        f"10th percentile{unit}": mean_and_deviation(row.tenth, number),
        **{
            f"{metric.title}{number_of(metric)[1]}": mean_and_deviation(value, number_of(metric)[0])
            for metric, value in row.others.items()
        },
        f"vs {row.versus}": plus(row.difference.mean) if row.difference else "",
        f"95 % interval vs {row.versus}": _ends(row.difference, plus) if row.difference else "",
        "uploads": f"{row.cost.uploads:.0f}",
        "MB up": f"{row.cost.megabytes_up:.2f}",
        "MB down": f"{row.cost.megabytes_down:.2f}",
    }
    for target in row.reach:
        goal = goal_of(target, row.metrics)
        found = _costs(row, target)
        some = f" ({found['reached']})" if 0 < row.reaching(target) < len(row.runs) else ""
        shown[f"rounds to {goal}"] = found["rounds"] + some
        shown[f"virtual s to {goal}"] = found["virtual s"]
    if row.paper is not None:
        shown["paper"] = f"{row.paper:g}"
    return shown


def costs(rows: Sequence[Row]) -> list[Columns]:
    """Return the costs of each row until each target, means over the seeds that reached it."""
    targets = list(dict.fromkeys(target for row in rows for target in row.reach))
    return [
        {"to": goal_of(target, row.metrics), **_texts(row), **_costs(row, target)}
        for target in targets
        for row in rows
    ]


def _costs(row: Row, target: Target) -> dict[str, str]:
    """Return the number of seeds that reached a target and their mean costs, by heading."""
    costs = row.cost_to(target)._asdict()
    return {
        "reached": f"{row.reaching(target)} of {len(row.runs)}",
        **{heading: cost_text(costs[name]) for name, heading in REACHED.items()},
    }


def cost_text(mean: float) -> str:
    """Return a cost as text; nothing if it is unknown."""
    if math.isnan(mean):
        return ""
    if math.isinf(mean):
        return NEVER
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def goal_of(target: Target, metrics: Sequence[Metric]) -> str:
    """Return a target in words, such as `80%` of the metric or `loss 0.5`."""
    is_share = target.measured(metrics, "reach").is_share
    goal = f"{100 * target.value:.4g}%" if is_share else f"{target.value:.4g}"
    return f"{target.name} {goal}".strip()


def _texts(row: Row) -> dict[str, str]:
    varied = {key: shown_value(value) for key, value in row.varied.items()}
    return varied | {key: written(value) for key, value in row.tuned.items()}


def headings(rows: Sequence[Columns]) -> list[str]:
    """Return the headings of all columns in which a row has something."""
    every = dict.fromkeys(heading for row in rows for heading in row)
    return [heading for heading in every if any(row.get(heading) for row in rows)]


def terminal(rows: Sequence[Columns], title: str, width: int) -> Table:
    """Return a table for a terminal of some width, with the columns that matter most."""
    names = [name for name in headings(rows) if not name.startswith(IN_FILES_ONLY)]
    first_left_out = [name for start in LEFT_OUT for name in names if start in name]
    while _width(rows, names) > width and first_left_out:
        names.remove(first_left_out.pop(0))
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in SETTINGS)
    for row in rows:
        table.add_row(*(escape(row.get(name, "")) for name in names))
    return table


def _width(rows: Sequence[Columns], names: Sequence[str]) -> int:
    """Return the width at which no cell breaks, and no heading within a word."""
    columns = ([*name.split(), *(row.get(name, "") for row in rows)] for name in names)
    return sum(3 + max(map(len, column)) for column in columns)


def markdown(rows: Sequence[Columns], about: str = "") -> str:
    """Return a table in Markdown, and below it what it is about."""
    names = headings(rows)
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in rows)]
    table = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
    return f"{table}\n{about}\n" if about else table


def comma_separated(rows: Sequence[Row]) -> str:
    """Return all numbers as CSV, shares from 0 to 1, one line per row."""
    records = [numbers(row) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    return csv_text([names, *([record.get(name, "") for name in names] for record in records)])


def numbers(row: Row) -> dict[str, Any]:
    """Return all numbers of a row, shares from 0 to 1."""
    record: dict[str, Any] = {**_texts(row), "runs": len(row.runs)}
    estimates = {
        row.metric.key: row.score,
        "difference": row.difference,
        "worst_client": row.worst,
        "tenth_percentile": row.tenth,
        **{metric.key: value for metric, value in row.others.items()},
    }
    for name, value in estimates.items():
        if value is not None:
            record |= {name: value.mean, f"{name}_deviation": value.deviation, f"{name}_margin": value.margin}
    record |= row.cost._asdict()
    for target in row.reach:
        record[f"reached_{target}"] = row.reaching(target)
        record |= {f"{name}_to_{target}": mean for name, mean in row.cost_to(target)._asdict().items()}
    if row.paper is not None:
        record["paper"] = row.paper
    return {
        key: "" if isinstance(value, float) and math.isnan(value) else value for key, value in record.items()
    }


def number_of(metric: Metric) -> tuple[Callable[[float], str], str]:
    """Return the format of a metric's values, and the unit after its name in a heading."""
    return (lambda value: f"{100 * value:.2f}", " %") if metric.is_share else ("{:.4g}".format, "")


def mean_and_deviation(value: Estimate | None, number: Callable[[float], str]) -> str:
    """Return a mean and its standard deviation as text, without those that are unknown.

    Behind a mean over some of the seeds, their number is shown.
    """
    if value is None or math.isnan(value.mean):
        return ""
    spread = "" if math.isnan(value.deviation) else f" ± {number(value.deviation)}"
    known, seeds = value.seeds
    return f"{number(value.mean)}{spread}" + (f" ({known} of {seeds})" if known < seeds else "")


def difference_and_interval(value: Estimate | None, number: Callable[[float], str]) -> str:
    """Return a difference and its interval as text, without those that are unknown."""
    if value is None:
        return ""
    ends = _ends(value, _signed(number))
    return _signed(number)(value.mean) + (f" ({ends})" if ends else "")


def _signed(number: Callable[[float], str]) -> Callable[[float], str]:
    """Return the format of differences."""
    return lambda value: "" if math.isnan(value) else f"{'' if value < 0 else '+'}{number(value)}"


def _ends(value: Estimate, number: Callable[[float], str]) -> str:
    """Return the confidence interval of a mean as text; nothing if there is none."""
    ends = value.mean - value.margin, value.mean + value.margin
    return "" if math.isnan(value.margin) else " to ".join(map(number, ends))


def caption(rows: Sequence[Row]) -> str:
    """Return the caption, which explains the numbers."""
    about = "Mean ± standard deviation over seeds; 95 % intervals (Student) of the mean"
    compared = any(row.difference for row in rows)
    paired = f", and of the difference to {rows[0].versus} with the same seed" if compared else ""
    return " ".join(filter(None, (f"{about}{paired}.", searched(rows))))


def searched(rows: Sequence[Row]) -> str:
    """Return a sentence about what was searched before; nothing if nothing was."""
    keys = ", ".join(rows[0].tuned if rows else ())
    return f"Best values of {keys}, from a search with another seed and on other data." if keys else ""
