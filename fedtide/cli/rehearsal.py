"""`--rehearse`: methods compared on the recorded participation of a fleet, and how to deploy the best one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtide.api.running import compare_and_report
from fedtide.base.wording import count, plain, say
from fedtide.cli.fleet import SUPERLINK, Deployment, deadline, deployment, describe_log
from fedtide.comparison.compare import Request
from fedtide.comparison.comparison import Comparison
from fedtide.comparison.results import Estimate, Row
from fedtide.comparison.store import write_texts
from fedtide.comparison.tables import difference_and_interval, mean_and_deviation, number_of
from fedtide.engine.client_numbers import read_numbers
from fedtide.engine.run_folder import finite
from fedtide.federation import Federation
from fedtide.report.trace import MAX_NAMES, print_lines, show_trace

FILE = "rehearsal.json"  # in the comparison's folder: what `--json` prints


@dataclass(frozen=True)
class Forecast:
    """How far a method's updates are from the clients' shares of the data, mean over seeds."""

    bias: float
    """Half the sum of the absolute differences between the clients' shares of the updates and of the data.

    It is the part of the updates that went to the wrong clients, from 0 to 1.
    """
    least: int  # the client whose share of the updates is smallest beside its share of the data
    ratio: float  # of these two shares
    notes: Sequence[str]  # sentences on what the shares leave out


@dataclass(frozen=True)
class Ranked:
    """A method, or another combination of the varied settings."""

    row: Row
    to_best: Estimate | None  # difference to the best, over the seeds that both have; None for the best
    forecast: Forecast | None  # None without shares of the updates

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, for `--json`."""
        return {
            **self.row.varied,
            self.row.metric.key: self.row.score._asdict(),
            "to_best": self.to_best and self.to_best._asdict(),
            "forecast": self.forecast and vars(self.forecast),
        }


@dataclass(frozen=True)
class Rehearsal:
    """How a rehearsal ended."""

    participation: Mapping[str, Any]  # the statistics of the log, see `show_trace`
    comparison: Comparison
    ranking: Sequence[Ranked]  # the best first; empty if no run is finished

    @property
    def heard(self) -> bool:
        """Whether a reply counted in any run."""
        return any(not run.summary["no_reply_counted"] for _, run in self.comparison.runs)

    @property
    def exit_code(self) -> int:
        """That of the comparison, and 3 if no reply ever counted."""
        return self.comparison.exit_code or (0 if self.heard else 3)

    @property
    def deployed(self) -> Deployment | None:
        """How the best is started on devices; None: no run counts.

        The run starts when as many devices are connected as in half of the rounds of the log, and they have
        as long for their work as in the rehearsal.
        """
        if not (self.ranking and self.heard):
            return None
        settings = self.ranking[0].row.runs[0].cell.settings
        online = statistics.median(share for share in self.participation["online"] if share is not None)
        nodes = max(1, round(online * settings.num_clients))
        return deployment(settings, min_nodes=nodes, round_deadline=deadline(settings))

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for `--json`."""
        deployed = self.deployed
        parts = {
            "task": self.comparison.runs[0].cell.settings.task if self.comparison.runs else None,
            "participation": self.participation,
            "comparison": self.comparison.as_json(),
            "ranking": [entry.as_json() for entry in self.ranking],
            "deploy": deployed and deployed.values,
            "files": deployed and deployed.files,
            "command": deployed and deployed.command,
        }
        return dict(finite(parts))


def rehearse(request: Request, console: Console) -> Rehearsal:
    """Describe the participation, run the methods, rank them, and print how to deploy the best one.

    The cells are of `rehearsal_values`; see `compare` for the errors.
    """
    first = request.cells[0].settings
    Federation.of(first).data  # noqa: B018 - refuses settings that are impossible for as many clients as the log has
    participation = show_trace(first, console)
    lines = describe_log(first, participation["virtual_seconds"])
    print_lines(console, [(name.ljust(15), text) for name, text in lines])
    comparison = compare_and_report(request, console)
    done = Rehearsal(participation, comparison, ranked(comparison.rows))
    kept = json.dumps(done.as_json(), indent=2, ensure_ascii=False)
    write_texts(comparison.folder, {FILE: kept + "\n"})
    _show(done, console)
    return done


def ranked(rows: Sequence[Row]) -> list[Ranked]:
    """Rank the rows by the mean score over seeds; rows without one come last."""
    order = sorted(rows, key=lambda row: row.badness)
    return [
        Ranked(
            row,
            None if row is order[0] else row.against(order[0]),
            forecast([run.path for _, run in row.runs]),
        )
        for row in order
    ]


def forecast(folders: Sequence[Path]) -> Forecast | None:
    """Return the bias of runs that differ in the seed only, from their folders; None: unknown."""
    kept = [numbers for folder in folders if (numbers := read_numbers(folder)) and numbers.update_shares]
    if not kept:
        return None
    updates, data = (np.array([getattr(n, f"{kind}_shares") for n in kept]) for kind in ("update", "data"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(data.mean(0) > 0, updates.mean(0) / data.mean(0), np.inf)
    least = int(ratio.argmin())
    known = (note for numbers in kept for note in numbers.notes)
    notes = dict.fromkeys(note for note in known if "updates" in note or "sample" in note)
    # Of a sample of the clients, it is estimated: their data are a part of all.
    bias = statistics.mean((np.abs(updates - data).sum(1) / 2 / data.sum(1)).tolist())
    return Forecast(bias, kept[0].clients[least], float(ratio[least]), [*notes])


def _show(done: Rehearsal, console: Console) -> None:
    """Print the ranking and the command that deploys its first."""
    if not done.ranking:
        return
    best = done.ranking[0].row
    settings = best.runs[0].cell.settings
    names = best.runs[0].run.client_names
    number, unit = number_of(best.metric)
    title = f"ranking on {settings.task}, {count(settings.num_clients, 'device')}"
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for name in ("", *best.varied, f"{best.metric.title}{unit}", "to best", "bias", "least heard"):
        table.add_column(name, overflow="fold")
    for place, entry in enumerate(done.ranking, start=1):
        bias = ["", ""]
        if entry.forecast:
            client = entry.forecast.least
            name = plain(names[client], 24) if names and names[client] else f"client {client}"
            bias = [f"{entry.forecast.bias:.3f}", f"{name} ({entry.forecast.ratio:.2f})"]
        results = [
            mean_and_deviation(entry.row.score, number),
            difference_and_interval(entry.to_best, number),
        ]
        shown = [*entry.row.varied.values(), *results, *bias]
        table.add_row(str(place), *(escape(str(part)) for part in shown))
    console.print(table)
    lines = [
        ("bias", "half the sum of |share of the updates - share of the data| over clients, mean over seeds"),
        ("least heard", "smallest share of the updates / share of the data"),
    ]
    notes = dict.fromkeys(n for entry in done.ranking if entry.forecast for n in entry.forecast.notes)
    lines += [("note", note) for note in notes]
    # Zero lies in the interval of the difference, or there is no interval.
    rivals = [e for e in done.ranking[1:] if e.to_best and not abs(e.to_best.mean) > e.to_best.margin]
    if rivals:
        named = ", ".join(" ".join(map(str, entry.row.varied.values())) for entry in rivals)
        note = f"the lead over {named} may be chance; try more seeds: --seed 0 1 2 ..."
        lines.append(("note", note))
    lines += _deployment(done)
    for name, text in lines:  # never broken: to be copied
        say(console, f"{name:11}  {text}")


def _deployment(done: Rehearsal) -> Iterator[tuple[str, str]]:
    """Yield the lines on deploying the best method to devices, each a name and a text."""
    yield "file", str(done.comparison.folder / FILE)
    if (deployed := done.deployed) is None:
        yield "note", "no reply ever counted: there is nothing to deploy"
        return
    many = len(done.participation.get("devices", ())) > MAX_NAMES
    place = f"participation.devices in {FILE}" if many else "above"
    yield "devices", f"start SuperNode K with --node-config 'client-id=K', numbered as {place}"
    nodes = count(deployed.values["min-nodes"], "device")
    yield "start", f"when {nodes} are connected (min-nodes), as in half of the log's rounds"
    yield "server", f"{SUPERLINK!r} is your SuperLink in ~/.flwr/config.toml (docs/deploy.md)"
    for there, here in deployed.files.items():
        yield "copy", f"{here} to {there} on the server"
    yield "deploy", deployed.command
