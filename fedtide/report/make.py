"""Makes the report of runs: reads their folders one after the other, and writes one page.

An error in the report of a run or comparison that has just ended harms neither.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedtide.base.wording import count, say
from fedtide.comparison import tables
from fedtide.comparison.comparison import Comparison
from fedtide.comparison.results import CellRun
from fedtide.config import Settings
from fedtide.engine.client_numbers import ClientNumbers
from fedtide.engine.client_states import try_trace
from fedtide.engine.compute_numbers import keep_numbers_of, numbers_of_run
from fedtide.engine.experiment import Experiment
from fedtide.engine.read_run import Run, read_run
from fedtide.engine.run import Outcome
from fedtide.report import page
from fedtide.report.bias import client_figure
from fedtide.report.curves import curves_figure
from fedtide.report.event_time import TimedRun, tasks_of
from fedtide.report.event_time_figures import gantt_figure, lag_figure
from fedtide.report.groups import groups_figures, groups_tables
from fedtide.report.page import Page, write_page
from fedtide.report.participation import Participation, of_run
from fedtide.report.participation_figure import participation_figure
from fedtide.report.plots import MAX_RUNS, Figure, columns_table
from fedtide.report.ranks import ranks_figure
from fedtide.report.rounds import event_figure, phase_figure
from fedtide.report.subject import subject_of
from fedtide.report.tuning import Search, read_searches, tuning_figure
from traces import Trace

FILE = "report.html"
AGAIN = "fedtide report makes it"


def report_run(experiment: Experiment, ended: Outcome, folder: Path, console: Console) -> None:
    """Keep the numbers of a run's clients and write its page, if it did not fail and is to have a report."""

    def make() -> Path:
        run = read_run(folder, records=True)
        keep_numbers_of(experiment, ended, run)
        contents = page_of(subject_of(run), [folder], compute=False, trace=experiment.trace)
        return _write(contents, folder, experiment.settings)

    if experiment.settings.report != "none" and "failed" not in ended.summary:
        _try(console, make)


def report_comparison(comparison: Comparison, settings: Settings, console: Console) -> None:
    """Write the page of a comparison that has a finished run, if the settings ask for a report."""

    def make() -> Path:
        folder = comparison.folder
        made = replace(comparison, command=shlex.join(sys.argv))
        return _write(page_of(made, [folder], compute=False), folder, settings)

    if comparison.rows and settings.report != "none":
        _try(console, make)


def _write(contents: Page, folder: Path, settings: Settings) -> Path:
    return write_page(contents, folder / FILE, folder.parent if settings.report == "link" else None)


def _try(console: Console, make: Callable[[], Path]) -> None:
    """Make a report and print its path; print errors instead of raising them."""
    try:
        line = f"report: {make()}"
    except KeyboardInterrupt:
        line = f"no report: interrupted; {AGAIN}"
    except ModuleNotFoundError as error:
        line = f"no report: {error.name} is missing; pip install plotly jinja2, then {AGAIN}"
    except Exception as error:
        line = f"no report: {type(error).__name__}: {' '.join(str(error).split())}"
    say(console, line)


def page_of(
    subject: Comparison, folders: Sequence[Path], compute: bool = True, trace: Trace | None = None
) -> Page:
    """Return the contents of the page of what was read from some folders.

    `compute` says whether to compute the numbers of clients that the run folders do not have; `trace` is that
    of the only run, if it has been made already.
    """
    numbers: dict[str, list[ClientNumbers]] = {label: [] for label in subject.groups}
    participations: list[tuple[str, Participation]] = []
    timed: list[TimedRun] = []
    reasons: Counter[str] = Counter()
    read: dict[Path, Run] = {}
    for label, group in subject.groups.items():
        for i, (_, one) in enumerate(group):
            run = one.with_records()  # those of one run at a time are in memory
            if i == 0 and len(participations) < MAX_RUNS:
                own = trace or try_trace(run.settings)
                took_part = of_run(run.records, run.settings, own, run.client_names)
                participations += [(label, took_part)] if took_part else []
                if tasks := tasks_of(run.records, run.settings.most_clients):
                    timed.append(TimedRun(label, tasks, run.client_names))
            if isinstance(found := numbers_of_run(run, compute), str):
                reasons[found] += 1
            else:
                numbers[label].append(found)
            read[run.path] = replace(run, records=(), columns=run.history)
    subject = replace(subject, runs=[CellRun(cell, read[run.path]) for cell, run in subject.runs])
    missing = [f"Numbers of clients are missing for {count(n, 'run')}: {why}." for why, n in reasons.items()]
    ranks = ranks_figure(subject.rankings)
    searches: dict[str, Search] = {}
    for folder in folders:
        searches |= read_searches(folder, next(iter(numbers)))
    drawn = [ranks, *_figures(subject, numbers, participations, timed, searches, missing)]
    figures = [figure for figure in drawn if figure is not None]
    costs = columns_table(tables.costs(subject.rows))
    has_bias = any(figure.name == "bias" for figure in figures)
    return Page(
        title=page.title(subject),
        subtitle=page.subtitle(subject),
        warnings=page.problems(subject),
        facts=page.facts(subject.runs[0].run) if subject.is_one_run else [],
        results=page.results(subject, [] if ranks else subject.claims) if subject.rows else None,
        text_tables=[
            *([("Costs to target", costs)] if costs.rows and not subject.is_one_run else []),
            *groups_tables(numbers, subject.metrics),
        ],
        figures=figures,
        absent=[("Bias", " ".join(missing))] if missing and not has_bias else [],
        settings=page.settings_tables([run for _, run in subject.runs]),
        command=subject.command,
    )


def _figures(
    subject: Comparison,
    numbers: Mapping[str, Sequence[ClientNumbers]],
    participations: Sequence[tuple[str, Participation]],
    timed: Sequence[TimedRun],
    searches: Mapping[str, Search],
    missing: Sequence[str],
) -> list[Figure | None]:
    runs = {label: [run for _, run in group] for label, group in subject.groups.items()}
    firsts = {label: of[0] for label, of in runs.items()}
    papers = {label: group[0].cell.paper for label, group in subject.groups.items()}
    several = len({cell.settings.seed for cell, _ in subject.runs}) > 1
    seed = [f"Seed {subject.runs[0].cell.settings.seed} only."] if several else []
    some = [f"Only the first {MAX_RUNS} of {len(runs)} combinations of settings."]
    return [
        curves_figure(runs, subject.panels, papers, subject.metrics),
        tuning_figure(searches, subject.panels, subject.metrics),
        gantt_figure(timed, seed),
        lag_figure(timed, [*runs], seed),
        participation_figure(participations, [*seed, *(some if len(runs) > MAX_RUNS else [])]),
        client_figure(numbers, missing, {label: run.client_names for label, run in firsts.items()}),
        *groups_figures(runs, subject.metrics),
        event_figure(firsts, seed),
        phase_figure({label: [run.history for run in of] for label, of in runs.items()}),
    ]
