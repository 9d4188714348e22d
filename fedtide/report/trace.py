"""`--show-trace`: statistics of a trace, by rounds or in event time, on the console and on a page."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fedtide.base.contract.fit import planned_steps
from fedtide.base.wording import client_name, say
from fedtide.comparison.store import identity, writing_in
from fedtide.config import Settings
from fedtide.engine.client_numbers import SAMPLE
from fedtide.engine.run_folder import slug
from fedtide.federation import Federation
from fedtide.report import plots
from fedtide.report.bias import bias_figure
from fedtide.report.event_time import TimedRun, describe_timeline, play, statistics_of, tasks_of
from fedtide.report.event_time_figures import gantt_figure, lag_figure
from fedtide.report.page import Page, write_page
from fedtide.report.participation import Participation, StateGrid, began_at, of_run
from fedtide.report.participation_figure import participation_figure
from fedtide.report.plots import Figure, Table, values_table
from fedtide.report.trace_statistics import Line, TraceReport, describe, observe
from traces import Trace
from traces.base import SECOND

# The settings that the page depends on: availability, numbers of steps and of examples.
SHOWN = (
    *("trace", "arrivals", "departures", "num_clients", "num_rounds", "seed"),
    *("local_steps", "local_epochs", "batch_size"),
    *("task", "partition", "sizes", "evaluate_on", "evaluate_clients", "holdout"),
)
EVENT_TIME = ("round_ends", "clients_per_round", "until")  # and these, in event time
BY_CLIENT = ("rates", "ratios")  # of a report: too long for --json
MAX_NAMES = 20  # of devices that are shown
ABOUT_SCHEMES = (
    "Each dot is a client: its weight in the updates of schemes A, B and C (Ruan et al., Theorem 3.1) "
    "divided by its share of the data, relative to the mean: 1 is unbiased. Lines connect means of groups."
)

Contents = tuple[dict[str, Any], list[Line], list[Figure | None]]
"""The statistics of a trace, the lines of its summary, and its figures."""


def show_trace(settings: Settings, console: Console) -> dict[str, Any]:
    """Evaluate the trace of the settings, print its statistics and write its page.

    Returns the statistics (`TraceReport` without those by client, in event time `TimelineReport`), and
    `page`, its path; for a trace recorded from devices with names, also `devices`, the name for each client.
    ValueError: the settings are invalid, the trace has no event time, or the page cannot be written.
    """
    federation = Federation.of(settings)
    trace = federation.trace
    statistics, lines, figures = (_in_event_time if settings.round_ends else _by_rounds)(federation)
    lines = [*lines, *([("devices", _named(trace.devices))] if trace.devices else [])]
    keys = (*SHOWN, *(EVENT_TIME if settings.round_ends else ()))
    page = Page(
        title=f"Trace {_title(settings)}",
        subtitle=_subtitle(settings),
        figures=[figure for figure in figures if figure is not None],
        text_tables=[("Statistics", Table(["statistic", "value"], [[*line] for line in lines]))],
        settings=[
            ("Settings", values_table("setting", [{k.replace("_", "-"): getattr(settings, k) for k in keys}]))
        ],
        command=shlex.join(sys.argv),
    )
    path = str(_write(settings, keys, page))
    print_lines(console, [("trace", f"{_title(settings)} · {page.subtitle}"), *lines, ("page", path)])
    return statistics | {"page": path} | ({"devices": list(trace.devices)} if trace.devices else {})


def _by_rounds(federation: Federation) -> Contents:
    settings, trace = federation.settings, federation.trace
    sizes, source = data_sizes(federation)
    work = (settings.local_steps, settings.local_epochs, settings.batch_size)
    planned = np.array([planned_steps(*work, n) for n in sizes.tolist()], np.int64)
    grid = StateGrid(trace.num_clients, range(1, settings.num_rounds + 1))
    report = observe(trace, settings.num_rounds, sizes, planned, grid.add)
    participation = participation_of(trace, report, grid)
    lines = [*describe(report, trace.devices, participation.began), ("shares", source)]
    if settings.clients_per_round:
        lines.append(("note", "sampling (clients-per-round) is ignored: all online clients are selected"))
    figures = [participation_figure([("", participation)]), _scheme_figure(report, trace.devices)]
    return {k: value for k, value in asdict(report).items() if k not in BY_CLIENT}, lines, figures


def _in_event_time(federation: Federation) -> Contents:
    settings, trace = federation.settings, federation.trace
    records = list(play(settings, trace))
    tasks = tasks_of(records, settings.most_clients)
    assert tasks is not None  # there is a round: somebody is online at some time
    report = statistics_of(settings, records, tasks)
    took_part = of_run(records, settings, trace, trace.devices)
    runs = [TimedRun("", tasks, trace.devices)]
    participation = participation_figure([("", took_part)] if took_part else [])
    figures = [gantt_figure(runs), lag_figure(runs, [""]), participation]
    return asdict(report), [*describe_timeline(report, trace.devices)], figures


def participation_of(trace: Trace, report: TraceReport, grid: StateGrid) -> Participation:
    """Return the participation in all rounds of a trace that were observed."""
    late = "Late work arrives in a later round. Until then its client gets no new task, which is not shown."
    notes = [*([late] if trace.has_late_replies else []), *grid.notes]
    ends = [trace.ends(t) for t in grid.rounds]
    hours = None if ends[-1] is None else np.array(ends, np.float64) / SECOND / 3600
    online, took_part = (np.array(shares, np.float64) for shares in (report.online, report.took_part))
    return Participation(grid, online, took_part, hours, notes, trace.devices, began_at(trace, hours))


def _scheme_figure(report: TraceReport, devices: Sequence[str]) -> Figure | None:
    """Return each client's weight in the updates of the schemes, against how often its work arrives."""
    known = np.flatnonzero(np.isfinite(report.rates))
    step = max(1, -(-len(known) // SAMPLE))
    clients = known[::step]
    schemes = {
        name: ratio[clients] for name, ratio in report.ratios.items() if np.isfinite(ratio[clients]).any()
    }
    if not schemes:
        return None
    notes = [ABOUT_SCHEMES, *([f"One in {step} clients is shown."] if step > 1 else [])]
    rows = (
        [client_name(k, devices), plots.percent(report.rates[k], 1), *(f"{ratio:.3f}" for ratio in of_client)]
        for k, *of_client in zip(clients.tolist(), *schemes.values(), strict=True)
    )
    dots = {name: (report.rates[clients], ratio) for name, ratio in schemes.items()}
    return bias_figure(
        {"weight in the updates<br>/ share of the data": dots},
        "rounds in which its work arrives, %",
        [*report.ratios],
        notes,
        plots.table_of(["client", "rounds with work, %", *schemes], {"": rows}),
    )


def data_sizes(federation: Federation) -> tuple[NDArray[np.int64], str]:
    """Return the number of examples of each client, shape (N,), and a description of their source.

    They are equal if the task's data are not on this machine or cannot be divided among so many clients: a
    trace can be inspected without data.
    """
    settings, missing = federation.settings, federation.missing_folder
    equal = np.ones(settings.num_clients, np.int64)
    if missing is not None:
        return equal, f"equal, as the data of {settings.task} are not in {missing}"
    try:
        sizes = federation.data.sizes
    except ValueError as error:
        return equal, f"equal ({' '.join(str(error).split())})"
    name = settings.partition or federation.source.default_partition
    divided = f", partition {name}, sizes {settings.sizes}" if name else ""
    return sizes, f"p^k by the examples of {settings.task}{divided}"


def print_lines(console: Console, lines: Sequence[Line]) -> None:
    """Print names and texts; on a terminal, lines break between words only, never inside a number."""
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        parts = [text]
        if console.is_terminal:
            room = max(20, console.width - width - 2)
            parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        for i, part in enumerate(parts):
            say(console, f"{'' if i else name:{width}}  {part}")


def _named(devices: Sequence[str]) -> str:
    names = [
        f"{client} {json.dumps(name, ensure_ascii=False)}" for client, name in enumerate(devices) if name
    ]
    return f"clients {plots.listed(names, MAX_NAMES)}"


def _title(settings: Settings) -> str:
    more = [f"{n} {getattr(settings, n)}" for n in ("arrivals", "departures") if getattr(settings, n)]
    return " · ".join([settings.trace, *more])


def _subtitle(settings: Settings) -> str:
    epochs, steps = settings.local_epochs, settings.local_steps
    work = f"{epochs} epochs" if epochs else f"E = {steps} local steps"
    rounds = f"{settings.num_rounds:,} rounds"
    if settings.round_ends:
        limit = settings.most_clients
        until = f" or {settings.until:g} s" if settings.until else ""
        rounds = f"event time, B = {settings.round_ends:,}, C = {limit:,} · up to {rounds}{until}"
    return (
        f"{settings.num_clients:,} clients · {rounds} · {work} · task {settings.task} · seed {settings.seed}"
    )


def _write(settings: Settings, keys: Sequence[str], page: Page) -> Path:
    """Write the page; its name follows from all that it depends on, so that it overwrites no other page."""
    shown = replace(Settings(), **{name: getattr(settings, name) for name in keys})
    parts = (settings.trace, settings.arrivals, settings.departures)
    name = slug(filter(None, parts), 80)
    about = f"{slug([settings.task], 20)}-{settings.num_clients}x{settings.num_rounds}-seed{settings.seed}"
    path = Path(settings.run_dir) / f"trace-{name}-{about}-{identity(shown)}.html"
    with writing_in(settings.run_dir):
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_page(page, path, path.parent if settings.report == "link" else None)
