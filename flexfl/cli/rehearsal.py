"""`--rehearse`: methods compared on the recorded participation of a fleet, and how to deploy the best one."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clients.environment import federated_data, make_trace
from flexfl.analysis.client_numbers import read_numbers
from flexfl.cli.deployment import deployed_values, flower_command
from flexfl.cli.fleet import deadline, describe_speeds
from flexfl.comparison.compare import Comparison, compare
from flexfl.comparison.results import Estimate, estimate
from flexfl.comparison.store import CellStore
from flexfl.comparison.tables import mean_and_deviation, number_of, signed
from flexfl.config import Settings
from flexfl.config.grid import Cell
from flexfl.engine.read_run import Run
from flexfl.engine.run_folder import finite
from flexfl.ground.wording import plain, say
from flexfl.report.trace_report import print_lines, show_trace
from flexfl.tasks import Metric


@dataclass(frozen=True)
class Forecast:
    """How far a method's updates are from the clients' shares of the data, mean over seeds.

    Attributes
    ----------
    bias
        Half the sum of the absolute differences between the clients' shares of the updates and of the data:
        the part of the updates that went to the wrong clients, from 0 to 1.
    least, ratio
        The client whose share of the updates is smallest beside its share of the data, and their ratio.
    notes
        Sentences on what the shares leave out.
    """

    bias: float
    least: int
    ratio: float
    notes: Sequence[str]


@dataclass(frozen=True)
class Ranked:
    """A method, or another combination of what is compared.

    Attributes
    ----------
    varied
        What it is, by setting.
    settings
        Of its first seed.
    metric, final
        What the task reports, and its final value.
    to_best
        Difference to the best, over the seeds that both have; None for the best itself.
    forecast
        None where there are no shares of the updates.
    """

    varied: Mapping[str, Any]
    settings: Settings
    metric: Metric
    final: Estimate
    to_best: Estimate | None
    forecast: Forecast | None


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal ended with.

    Attributes
    ----------
    participation
        The statistics of the log, see `show_trace`.
    comparison
        The runs.
    ranking
        The best first; empty if no run is finished.
    heard
        Whether a reply counted in any run.
    """

    participation: Mapping[str, Any]
    comparison: Comparison
    ranking: Sequence[Ranked]
    heard: bool

    @property
    def exit_code(self) -> int:
        """That of the comparison, and 3 if no reply ever counted."""
        return self.comparison.exit_code or (0 if self.heard else 3)

    @property
    def deployed(self) -> dict[str, Any] | None:
        """The settings for the best on devices, see `deployed_values`; None: no run counts.

        As many devices have to be connected at the start as there were in the emptiest round of the log,
        and they have as long for their work as in the rehearsal.
        """
        if not (self.ranking and self.heard):
            return None
        settings = self.ranking[0].settings
        least = min(share for share in self.participation["online"] if share is not None)
        nodes = max(1, round(least * settings.num_clients))
        return deployed_values(settings, min_nodes=nodes, round_deadline=deadline(settings))

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for `--json`."""
        ranking = [
            {**entry.varied, entry.metric.key: entry.final._asdict()}
            | {"to_best": entry.to_best._asdict() if entry.to_best else None}
            | {"forecast": vars(entry.forecast) if entry.forecast else None}
            for entry in self.ranking
        ]
        deployed = self.deployed
        parts = {"participation": self.participation, "comparison": self.comparison.as_json()}
        command = flower_command(deployed) if deployed else None
        shown: dict[str, Any] = finite(parts | {"ranking": ranking, "deploy": deployed, "command": command})
        return shown


def compare_and_report(
    cells: Sequence[Cell], console: Console, reach: float | None, fresh: bool
) -> Comparison:
    """Run a comparison and write its page; see `compare`."""
    from flexfl.report.after_run import report_comparison  # imports PyTorch, which the driver does without

    comparison = compare(cells, console, reach, fresh)
    report_comparison(comparison, cells[0].settings, console)
    return comparison


def rehearse(cells: Sequence[Cell], console: Console, reach: float | None, fresh: bool) -> Rehearsal:
    """Tell what participation looks like, run the methods, rank them, and say how to deploy the best.

    Parameters
    ----------
    cells
        The runs, of `rehearsal_values`.
    console, reach, fresh
        See `compare`.

    Raises
    ------
    ValueError
        The settings are invalid, or a folder cannot be written.
    """
    first = cells[0].settings
    federated_data(first)  # what is impossible for as many clients as the log has is refused here
    participation = show_trace(first, console)
    print_lines(console, [("local steps".ljust(15), describe_speeds(first))])
    comparison = compare_and_report(cells, console, reach, fresh)
    store = CellStore(first.run_dir)
    loaded = {cell.settings: store.load(cell.settings) for cell in cells}
    finished = {settings: run for settings, run in loaded.items() if run is not None}
    heard = any(not run.summary["no_reply_counted"] for run in finished.values())
    done = Rehearsal(participation, comparison, ranked(cells, finished, store), heard)
    _show(done, console)
    return done


def ranked(cells: Sequence[Cell], finished: Mapping[Settings, Run], store: CellStore) -> list[Ranked]:
    """Rank what is compared by the mean of the final metric over seeds; what has none comes last."""
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.settings in finished:
            groups[cell.row].append(cell)
    finals = {row: {c.settings.seed: finished[c.settings].final for c in of} for row, of in groups.items()}
    metric = next((run.metric for run in finished.values()), None)
    worst = -math.inf if metric is None or metric.higher_is_better else math.inf

    def mean(row: tuple[Any, ...]) -> float:
        value = estimate([*finals[row].values()]).mean
        return worst if math.isnan(value) else value

    order = sorted(groups, key=mean, reverse=worst < 0)
    found = []
    for row in order:
        own, best = finals[row], finals[order[0]]
        run = finished[groups[row][0].settings]
        found.append(
            Ranked(
                varied={key: value for key, value in groups[row][0].varied.items() if key != "seed"},
                settings=groups[row][0].settings,
                metric=run.metric,
                final=estimate([*own.values()]),
                to_best=None
                if row == order[0]
                else estimate([own[seed] - best[seed] for seed in own if seed in best]),
                forecast=forecast([store.path(cell.settings) for cell in groups[row]]),
            )
        )
    return found


def forecast(folders: Sequence[Path]) -> Forecast | None:
    """Return how biased the runs in these folders were, which differ in the seed only; None: unknown."""
    kept = [numbers for folder in folders if (numbers := read_numbers(folder)) and numbers.update_shares]
    if not kept:
        return None
    updates, data = (np.array([getattr(n, f"{kind}_shares") for n in kept]) for kind in ("update", "data"))
    ratio = np.divide(
        updates.mean(0), data.mean(0), out=np.full(data.shape[1], np.inf), where=data.mean(0) > 0
    )
    least = int(ratio.argmin())
    notes = dict.fromkeys(note for numbers in kept for note in numbers.notes if "updates" in note)
    bias = statistics.mean((np.abs(updates - data).sum(1) / 2).tolist())
    return Forecast(bias, kept[0].clients[least], float(ratio[least]), [*notes])


def _show(done: Rehearsal, console: Console) -> None:
    """Print the ranking and the command that deploys its first."""
    if not done.ranking:
        return
    best, names = done.ranking[0], make_trace(done.ranking[0].settings).devices
    number, unit = number_of(best.metric)
    table = Table(title="ranking", box=SIMPLE, pad_edge=False)
    for name in ("", *best.varied, f"{best.metric.title}{unit}", "to best", "bias", "least heard"):
        table.add_column(name, overflow="fold")
    for place, entry in enumerate(done.ranking, start=1):
        bias = ["", ""]
        if entry.forecast:
            client = entry.forecast.least
            name = plain(names[client], 24) if names and names[client] else f"client {client}"
            bias = [f"{entry.forecast.bias:.3f}", f"{name} ({entry.forecast.ratio:.2f})"]
        results = [mean_and_deviation(entry.final, number), signed(entry.to_best, number)]
        table.add_row(str(place), *(escape(str(part)) for part in [*entry.varied.values(), *results, *bias]))
    console.print(table)
    lines = [
        ("bias", "half the sum of |share of the updates - share of the data| over clients, mean over seeds")
    ]
    lines += [("least heard", "smallest share of the updates / share of the data")]
    notes = dict.fromkeys(n for entry in done.ranking if entry.forecast for n in entry.forecast.notes)
    lines += [("note", note) for note in notes]
    rivals = [entry for entry in done.ranking[1:] if entry.to_best and _may_be_equal(entry.to_best)]
    if rivals:
        shown = ", ".join(" ".join(map(str, entry.varied.values())) for entry in rivals)
        lines.append(
            ("note", f"with these seeds the first cannot be told from {shown}; try more: --seed 0 1 2 ...")
        )
    if done.deployed:
        lines.append(("devices", "start SuperNode K with --node-config 'client-id=K', numbered as above"))
        lines.append(("deploy", flower_command(done.deployed)))
    else:
        lines.append(("note", "no reply ever counted: there is nothing to deploy"))
    for name, text in lines:  # never broken: to be copied
        say(console, f"{name:11}  {text}")


def _may_be_equal(difference: Estimate) -> bool:
    """Whether zero lies in the interval of a difference, or there is no interval."""
    return math.isnan(difference.margin) or abs(difference.mean) <= difference.margin
