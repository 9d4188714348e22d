"""Makes the report of runs: reads their folders one after the other, and writes one page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexfl.comparison import tables
from flexfl.comparison.results import rows_of
from flexfl.comparison.store import FinishedCell
from flexfl.config.grid import Cell
from flexfl.ground.files import replacing
from flexfl.ground.wording import count
from flexfl.report.client_figure import client_figure
from flexfl.report.client_numbers import ClientNumbers
from flexfl.report.clients import numbers_of_run
from flexfl.report.curves import curves_figure
from flexfl.report.event_figure import event_figure
from flexfl.report.figure import Figure, Table
from flexfl.report.history import History, history_of
from flexfl.report.page import Page, Results, render
from flexfl.report.participation import Participation, of_run, try_trace
from flexfl.report.participation_figure import MOST_RUNS, participation_figure
from flexfl.report.phase_figure import phase_figure
from flexfl.report.reading import Run, Subject, groups_of, read_subject
from flexfl.report.records import records_of
from traces import Trace

FILE = "report.html"


def write_report(
    folders: Sequence[Path], file: Path | None = None, compute: bool = True, trace: Trace | None = None
) -> Path:
    """Make the report of the runs in some folders; return where it was written.

    Parameters
    ----------
    folders
        Of runs and comparisons.
    file
        Where to write it; default: `report.html` in the only folder.
    compute
        Whether to compute what the run folders do not keep of their clients.
    trace
        That of the only run, if it has been made already.

    Raises
    ------
    ValueError
        A folder is not there, holds no run, or they do not fit together.
    OSError
        The file cannot be written.
    """
    text = render(page_of(read_subject(folders), compute, trace))
    path = file or folders[0] / FILE
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def page_of(subject: Subject, compute: bool = True, trace: Trace | None = None) -> Page:
    """Return what the page shows."""
    groups = groups_of(subject.runs)
    histories: dict[Path, History] = {}
    numbers: dict[str, list[ClientNumbers]] = {label: [] for label in groups}
    participations: list[tuple[str, Participation]] = []
    reasons: Counter[str] = Counter()
    for label, runs in groups.items():
        for run in runs:  # the records of one run at a time are in memory
            records = records_of(run.path)
            histories[run.path] = history_of(records, run.metric.key)
            if run is runs[0] and len(participations) < MOST_RUNS:
                took_part = of_run(records, run.settings, trace or try_trace(run.settings))
                participations += [] if took_part is None else [(label, took_part)]
            found = numbers_of_run(run, compute)
            if isinstance(found, str):
                reasons[found] += 1
            else:
                numbers[label].append(found)
    by_label = {label: [histories[run.path] for run in runs] for label, runs in groups.items()}
    missing = [
        f"There are no numbers of clients for {f'{times} runs' if times > 1 else 'a run'}: {reason}."
        for reason, times in reasons.items()
    ]
    bias = client_figure(numbers, missing)
    several = len({run.settings.seed for run in subject.runs}) > 1
    seed = f"Of seed {subject.runs[0].settings.seed} only." if several else ""
    some = f"Of the first {MOST_RUNS} of {len(groups)} combinations of settings."
    figures = [
        curves_figure(
            by_label, {label: runs[0].paper for label, runs in groups.items()}, subject.runs[0].metric
        ),
        _noted(participation_figure(participations), seed, some if len(groups) > MOST_RUNS else ""),
        bias,
        _noted(event_figure([(label, of[0]) for label, of in by_label.items()]), seed),
        phase_figure(by_label),
    ]
    return Page(
        title=_title(subject),
        subtitle=_subtitle(subject, len(groups)),
        warnings=[*_unended(subject, histories), *subject.missing[:10]],
        facts=[] if subject.is_comparison else _facts(subject.runs[0], histories[subject.runs[0].path]),
        results=_results(subject, histories),
        figures=[figure for figure in figures if figure is not None],
        absent=[("Bias", " ".join(missing))] if bias is None and missing else [],
        settings=_settings(subject.runs),
        command=subject.command,
    )


def _noted(figure: Figure | None, *notes: str) -> Figure | None:
    """Return a figure with further notes; empty ones are none."""
    return None if figure is None else replace(figure, notes=[*filter(None, notes), *figure.notes])


def _title(subject: Subject) -> str:
    run = subject.runs[0]
    if not subject.is_comparison:
        return f"{run.settings.strategy} on {run.settings.task}"
    varied = ", ".join(key.replace("-", " ") for key in run.varied if key != "seed") or "seed"
    tasks = sorted({run.settings.task for run in subject.runs})
    return f"Comparison by {varied} on {', '.join(tasks)}"


def _subtitle(subject: Subject, num_groups: int) -> str:
    runs = subject.runs
    settings = {
        key: {run.settings.as_mapping()[key] for run in runs} for key in ("num-clients", "num-rounds", "seed")
    }
    clients, rounds, seeds = (" or ".join(f"{value:,}" for value in sorted(of)) for of in settings.values())
    parts = [f"{clients} clients", f"{rounds} rounds"]
    if subject.is_comparison:
        several = f"{len(settings['seed'])} seeds" if len(settings["seed"]) > 1 else f"seed {seeds}"
        lines = f"{count(num_groups, 'combination')} of settings"
        parts = [f"{len(runs)} runs", lines, several, *parts]
    else:
        parts += [f"seed {seeds}", str(runs[0].path.name)]
    return " · ".join(parts)


def _unended(subject: Subject, histories: Mapping[Path, History]) -> list[str]:
    """Return sentences about runs that did not go through to their ends."""
    found = []
    for run in subject.runs:
        if run.ended:
            rounds = histories[run.path].rounds
            last = f"round {rounds[-1]:.0f}" if len(rounds) else "no round"
            name = f"The run {run.path.name}" if subject.is_comparison else "This run"
            found.append(f"{name} {run.ended}. Its records end with {last} of {run.settings.num_rounds}.")
    return found[:10]


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
        "seconds": _number(run.summary.get("seconds"), 1, 1),
        "virtual hours": _number(history.virtual_seconds[-1] / 3600, 1, 1) if history.has_clock else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _number(value: Any, factor: float, digits: int) -> str:
    known = isinstance(value, int | float) and math.isfinite(value)
    return f"{factor * value:,.{digits}f}" if known else ""


def _summary(run: Run, history: History) -> dict[str, Any]:
    """Return the run's summary; of one that did not end, what its last evaluation says."""
    if run.summary:
        return dict(run.summary)
    evaluated = [i for i, loss in enumerate(history.loss) if math.isfinite(loss)]
    if not evaluated:
        return {"final": {run.metric.key: None, "loss": None}}
    score, loss = float(history.score[evaluated[-1]]), float(history.loss[evaluated[-1]])
    return {"final": {run.metric.key: score if math.isfinite(score) else None, "loss": loss}}


def _results(subject: Subject, histories: Mapping[Path, History]) -> Results | None:
    """Return the rows of the tables that a comparison writes."""
    grid, finished = [], {}
    for run in subject.runs:
        history = histories[run.path]
        if not history.slim:
            continue
        settings = replace(
            run.settings, run_dir=str(run.path)
        )  # two runs with the same settings are two cells
        varied = run.varied or {"strategy": run.settings.strategy}
        grid.append(Cell(settings, varied, run.paper))
        version = run.versions.get("flexfl", "unknown")
        finished[settings] = FinishedCell(_summary(run, history), history.slim, version)
    if not grid:
        return None
    rows = rows_of(grid, finished, subject.reach)
    shown = [tables.columns(row, subject.reach) for row in rows]
    names = tables.headings(shown)
    table = Table(names, [[row.get(name, "") for name in names] for row in shown])
    notes: list[str] = []
    if subject.is_comparison:
        notes.append(
            "Results: mean and standard deviation over seeds, the interval of the mean (Student, 95 %), the "
            "mean of the last ten evaluations, and the difference to the first strategy on the same seeds, "
            "with its 95 % margin."
        )
    copies = [("CSV", tables.comma_separated(rows)), ("Markdown", tables.markdown(shown))]
    return Results(table, copies, notes)


def _settings(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """Return what the runs have in common, in which settings they differ, and the versions."""
    values: dict[str, list[str]] = {}
    for run in runs:
        for key, value in run.settings.as_mapping().items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            values.setdefault(key, [])
            if text not in values[key]:
                values[key].append(text)
    rows = [[key, _some(of)] for key, of in values.items()]
    versions: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, [])
            if str(version) not in versions[name]:
                versions[name].append(str(version))
    found = [("Settings", Table(["setting", "value"], rows))]
    if versions:
        found.append(
            ("Versions", Table(["package", "version"], [[k, ", ".join(v)] for k, v in versions.items()]))
        )
    return found


def _some(texts: Sequence[str]) -> str:
    """List the values of a setting, the first ones if there are many."""
    listed = " | ".join(text or "(default)" for text in texts[:12])
    return f"{listed} | and {len(texts) - 12} more" if len(texts) > 12 else listed
