"""Makes the report of runs: reads their folders one after the other, and writes one page.

An error in the report of a run or comparison that has just ended harms neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedtide.analysis.client_numbers import ClientNumbers
from fedtide.analysis.compute import keep_numbers_of, numbers_of_run
from fedtide.comparison import claims, tables
from fedtide.comparison.claims import Lacking
from fedtide.comparison.compare import Comparison
from fedtide.comparison.results import CellRun, Row, rows_of
from fedtide.config import Settings
from fedtide.engine.experiment import Experiment
from fedtide.engine.read_run import Run, valid_records
from fedtide.engine.run import Outcome
from fedtide.engine.run_folder import finite
from fedtide.ground.files import replacing
from fedtide.ground.wording import count, duration, say
from fedtide.report.bias_figure import client_figure
from fedtide.report.curves import curves_figure
from fedtide.report.event_figure import event_figure
from fedtide.report.event_tasks import TimedRun, tasks_of
from fedtide.report.figure import Figure, Table, values_table
from fedtide.report.gantt_figure import gantt_figure
from fedtide.report.grid import grid_of
from fedtide.report.history import History, history_of
from fedtide.report.lag_figure import lag_figure
from fedtide.report.page import Page, Results, render
from fedtide.report.participation import Participation, of_run, try_trace
from fedtide.report.participation_figure import MAX_RUNS, participation_figure
from fedtide.report.phase_figure import phase_figure
from fedtide.report.ranks_figure import ranks_figure
from fedtide.report.subject import Subject, read_subject
from fedtide.report.tuning_figure import read_searches, tuning_figure
from traces import Trace

FILE = "report.html"
AGAIN = "python -m fedtide.report makes it"
MAX_WARNINGS = 10  # of each kind

Histories = Mapping[Path, History]


def report_run(experiment: Experiment, ended: Outcome, folder: Path, console: Console) -> None:
    """Keep the numbers of a run's clients and write its page, if it did not fail and is to have a report."""

    def make() -> Path:
        keep_numbers_of(experiment, ended, folder)
        return write_report([folder], compute=False, trace=experiment.trace)

    if experiment.settings.report and "failed" not in ended.summary:
        _try(console, make)


def report_comparison(comparison: Comparison, settings: Settings, console: Console) -> None:
    """Write the page of a comparison that has a finished run, if the settings ask for a report."""
    if comparison.rows and settings.report:
        _try(console, lambda: write_report([comparison.folder], compute=False))


def _try(console: Console, make: Callable[[], Path]) -> None:
    """Make a report and print its path; print errors instead of raising them."""
    try:
        line = f"report: {make()}"
    except KeyboardInterrupt:
        line = f"no report: interrupted; {AGAIN}"
    except ModuleNotFoundError as error:
        line = f"no report: {error.name} is missing; pip install 'fedtide[report]', then {AGAIN}"
    except Exception as error:
        line = f"no report: {type(error).__name__}: {' '.join(str(error).split())}"
    say(console, line)


def write_report(
    folders: Sequence[Path],
    file: Path | None = None,
    compute: bool = True,
    trace: Trace | None = None,
    trust: bool = False,
) -> Path:
    """Write the report of the runs in some folders, of runs or comparisons; return the path of its page.

    `compute` says whether to compute the numbers of clients that the run folders do not have; `trace` is that
    of the only run, if it has been made already; `trust` is as of `read_run`. ValueError: a folder does not
    exist or has no run, or the runs cannot be compared.
    """
    text = render(page_of(read_subject(folders, trust), compute, trace))
    path = file or folders[0] / FILE
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def page_of(subject: Subject, compute: bool = True, trace: Trace | None = None) -> Page:
    """Return the contents of the page; see `write_report`."""
    groups = subject.groups
    histories: dict[Path, History] = {}
    numbers: dict[str, list[ClientNumbers]] = {label: [] for label in groups}
    participations: list[tuple[str, Participation]] = []
    timed: list[TimedRun] = []
    reasons: Counter[str] = Counter()
    for label, group in groups.items():
        for i, (_, run) in enumerate(group):  # the records of one run at a time are in memory
            records = valid_records(run.path)
            known = (run.metric.key, "stopped" in run.summary, run.client_names)
            histories[run.path] = history_of(records, *known)
            if i == 0 and len(participations) < MAX_RUNS:
                own = trace or try_trace(run.settings)
                took_part = of_run(records, run.settings, own, run.client_names)
                participations += [(label, took_part)] if took_part else []
                limit = run.settings.most_clients
                if tasks := tasks_of(records, limit):
                    timed.append(TimedRun(label, tasks, run.client_names))
            if isinstance(found := numbers_of_run(run, compute), str):
                reasons[found] += 1
            else:
                numbers[label].append(found)
    rows = _rows(subject, histories)
    rankings = claims.rankings_of(rows, _lacking(subject))
    about = "Numbers of clients are missing for"
    missing = [f"{about} {count(times, 'run')}: {reason}." for reason, times in reasons.items()]
    ranks = ranks_figure(rankings)
    figures = [
        *([ranks] if ranks else []),
        *_figures(subject, histories, numbers, participations, timed, missing),
    ]
    first = subject.runs[0].run
    results = _results(rows, subject, [] if ranks else claims.sentences(rankings)) if rows else None
    has_bias = any(figure.name == "bias" for figure in figures)
    return Page(
        title=_title(subject),
        subtitle=_subtitle(subject),
        warnings=[*_problems(subject, histories), *subject.missing[:MAX_WARNINGS]],
        facts=[] if subject.is_comparison else _facts(first, histories[first.path]),
        results=results,
        text_tables=_costs(rows) if subject.is_comparison else [],
        figures=figures,
        absent=[("Bias", " ".join(missing))] if missing and not has_bias else [],
        settings=_settings([run for _, run in subject.runs]),
        command=subject.command,
    )


def _figures(
    subject: Subject,
    histories: Histories,
    numbers: Mapping[str, Sequence[ClientNumbers]],
    participations: Sequence[tuple[str, Participation]],
    timed: Sequence[TimedRun],
    missing: Sequence[str],
) -> list[Figure]:
    groups = subject.groups
    searches = [one for folder in subject.folders for one in read_searches(folder, next(iter(groups)))]
    by_label = {label: [histories[run.path] for _, run in group] for label, group in groups.items()}
    papers = {label: group[0].cell.paper for label, group in groups.items()}
    several = len({cell.settings.seed for cell, _ in subject.runs}) > 1
    seed = [f"Seed {subject.runs[0].cell.settings.seed} only."] if several else []
    some = [f"Only the first {MAX_RUNS} of {len(groups)} combinations of settings."]
    figures = [
        curves_figure(by_label, subject.panels, papers, subject.metric),
        tuning_figure(searches, subject.panels, subject.metric),
        gantt_figure(timed, seed),
        lag_figure(timed, [*groups], seed),
        participation_figure(participations, [*seed, *(some if len(groups) > MAX_RUNS else [])]),
        client_figure(numbers, missing, {label: of[0].client_names for label, of in by_label.items()}),
        event_figure([(label, of[0]) for label, of in by_label.items()], seed),
        phase_figure(by_label),
    ]
    return [figure for figure in figures if figure is not None]


def _title(subject: Subject) -> str:
    first = subject.runs[0].cell
    if not subject.is_comparison:
        return f"{first.settings.strategy} on {first.settings.task}"
    varied = ", ".join(key.replace("-", " ") for key in first.varied if key != "seed") or "seed"
    tasks = sorted({cell.settings.task for cell, _ in subject.runs})
    return f"Comparison by {varied} on {', '.join(tasks)}"


def _subtitle(subject: Subject) -> str:
    runs = subject.runs
    clients, rounds, seeds = (
        sorted({getattr(cell.settings, key) for cell, _ in runs})
        for key in ("num_clients", "num_rounds", "seed")
    )
    parts = [f"{' or '.join(f'{n:,}' for n in clients)} clients"]
    up_to = "up to " if any(cell.settings.may_stop_early for cell, _ in runs) else ""
    parts += [f"{up_to}{' or '.join(f'{n:,}' for n in rounds)} rounds"]
    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    if not subject.is_comparison:
        return " · ".join([*parts, seed, runs[0].run.path.name])
    combinations = f"{count(len(subject.groups), 'combination')} of settings"
    return " · ".join([count(len(runs), "run"), combinations, seed, *parts])


def _problems(subject: Subject, histories: Histories) -> list[str]:
    """Return sentences about runs that did not finish."""
    found = []
    for run in (run for _, run in subject.runs if run.problem):
        rounds = histories[run.path].rounds
        last = f"round {rounds[-1]:.0f}" if len(rounds) else "no round"
        name = f"Run {run.path.name}" if subject.is_comparison else "This run"
        found.append(f"{name} {run.problem}. Its records end with {last} of {run.settings.num_rounds}.")
    return found[:MAX_WARNINGS]


def _facts(run: Run, history: History) -> list[tuple[str, str]]:
    """Return the most important numbers of a run."""
    final = _summary(run, history)["final"]
    metric = run.metric
    unit, factor, digits = (", %", 100, 2) if metric.is_share else ("", 1, 4)
    facts = {
        f"{metric.title}{unit}": _number(final.get(metric.key), factor, digits),
        "loss": _number(final.get("loss"), 1, 4),
        "training loss": _number(final.get("train_loss"), 1, 4),
        f"{metric.title} at clients{unit}": _number(final.get(f"client_{metric.key}"), factor, digits),
        f"worst client{unit}": _number(final.get(f"worst_client_{metric.key}"), factor, digits),
        "rounds": f"{history.rounds[-1]:,.0f}" if len(history.rounds) else "0",
        "client updates": f"{history.uploads[-1]:,.0f}" if len(history.uploads) else "0",
        "seconds in rounds": _number(run.summary.get("seconds"), 1, 1),
        "stopped by": str(run.summary.get("stopped", "")),
        "virtual time": duration(float(np.nanmax(history.virtual_seconds))) if history.has_clock else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _number(value: Any, factor: float, digits: int) -> str:
    known = isinstance(value, int | float) and math.isfinite(value)
    return f"{factor * value:,.{digits}f}" if known else ""


def _summary(run: Run, history: History) -> dict[str, Any]:
    """Return the run's summary; without one, its last evaluation."""
    if run.summary:
        return run.summary
    evaluated = [i for i, loss in enumerate(history.loss) if math.isfinite(loss)]
    last = {run.metric.key: history.score, "loss": history.loss}
    return {
        "final": finite({key: float(of[evaluated[-1]]) if evaluated else None for key, of in last.items()})
    }


def _rows(subject: Subject, histories: Histories) -> list[Row]:
    """Return the rows of the tables that a comparison writes."""
    finished = []
    for cell, run in subject.runs:
        if records := histories[run.path].slim:
            shown = replace(cell, varied=cell.varied or {"strategy": cell.settings.strategy})
            summary = _summary(run, histories[run.path])
            finished.append(CellRun(shown, replace(run, summary=summary, records=records)))
    return rows_of(finished, finished[0].cell.settings.strategy, subject.reach) if finished else []


def _costs(rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """Return a table of what it took to reach the targets, if there are any."""
    columns = tables.costs(rows)
    names = tables.headings(columns)
    shown = Table(names, [[row.get(name, "") for name in names] for row in columns])
    return [("Costs to target", shown)] if columns else []


def _lacking(subject: Subject) -> list[Lacking]:
    """Return the runs without a result that counts."""
    ended = [Lacking(cell.varied, run.status == "failed") for cell, run in subject.runs if run.problem]
    return [*subject.lacking, *ended]


def _results(rows: Sequence[Row], subject: Subject, said: Sequence[str]) -> Results:
    """Return the table of results, and what can be claimed."""
    columns = [tables.columns(row) for row in rows]
    names = tables.headings(columns)
    return Results(
        Table(names, [[row.get(name, "") for name in names] for row in columns]),
        [("CSV", tables.comma_separated(rows)), ("Markdown", tables.markdown(columns))],
        [tables.caption(rows), *said] if subject.is_comparison else [],
        grid_of(rows, subject.panels),
    )


def _settings(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """Return tables of the settings and versions, with all values that occur."""
    settings = values_table("setting", [{**run.settings.as_mapping(), **run.resolved} for run in runs])
    versions = values_table("package", [run.versions for run in runs])
    return [("Settings", settings), *([("Versions", versions)] if versions.rows else [])]
