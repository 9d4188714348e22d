"""The report on a trace, before any training: who will take part, and how that biases the schemes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import numpy as np

from flexfl.config import Settings
from flexfl.report.client_figure import bias_figure
from flexfl.report.client_numbers import SAMPLE
from flexfl.report.figure import Figure, Table, percent
from flexfl.report.page import Page, render
from flexfl.report.participation import Participation
from flexfl.report.participation_figure import participation_figure
from flexfl.report.states import State, StateGrid, States
from flexfl.report.trace_report import TraceReport
from traces import Trace

# What the page depends on: all that decides who is there, for how many steps, and with how many examples.
SHOWN = (
    *("trace", "arrivals", "departures", "num_clients", "num_rounds", "seed"),
    *("local_steps", "local_epochs", "batch_size"),
    *("task", "partition", "sizes", "evaluate_on", "evaluate_clients", "holdout"),
)
BY_CLIENT = ("rates", "ratios")  # of a report: too long for the console
TABLE_ROWS = 200


class Collected:
    """Collects the states that the clients have in the rounds of a trace.

    Parameters
    ----------
    trace
        The trace.
    num_rounds
        R; all rounds are added in order.
    """

    def __init__(self, trace: Trace, num_rounds: int) -> None:
        self.trace, self.num_rounds = trace, num_rounds
        self.grid = StateGrid(trace.num_clients, range(1, num_rounds + 1))
        self.took_part: list[float] = []

    def add(self, t: int, states: States) -> None:
        """Take in a round; on the page, work that arrives later is late."""
        arrived = states >= State.INCOMPLETE
        members = int((states > State.ABSENT).sum())
        self.took_part.append(int(arrived.sum()) / members if members else np.nan)
        if self.trace.has_late_replies:
            states = np.where(arrived & (self.trace.late(t) > 0), np.int8(State.LATE), states)
        self.grid.add(t, states)

    def participation(self, online: Sequence[float | None]) -> Participation:
        """Return what has been collected.

        Parameters
        ----------
        online
            Share of the members that is online in each round.
        """
        rounds = [*range(1, self.num_rounds + 1)]
        notes = []
        if self.trace.has_late_replies:
            notes.append(
                "Late: the work arrives in a later round. Until then its client gets no new task, "
                "which is not shown here."
            )
        if self.grid.step > 1:
            notes.append(f"Of the {self.grid.num_clients:,} clients, every {self.grid.step}th is shown.")
        seconds = [self.trace.seconds(t) for t in rounds]
        hours = None if seconds[-1] is None else np.array(seconds, np.float64) / 3600
        shares = np.array([np.nan if share is None else share for share in online])
        return Participation(self.grid, rounds, shares, np.array(self.took_part), hours, notes)


def title_of(settings: Settings) -> str:
    """Return what the page is about."""
    more = [f"{n} {getattr(settings, n)}" for n in ("arrivals", "departures") if getattr(settings, n)]
    return " · ".join([settings.trace, *more])


def subtitle_of(settings: Settings) -> str:
    """Return the sizes, E, task and seed."""
    work = (
        f"{settings.local_epochs} epochs"
        if settings.local_epochs
        else f"E = {settings.local_steps} local steps"
    )
    parts = [
        f"{settings.num_clients:,} clients",
        f"{settings.num_rounds:,} rounds",
        work,
        f"task {settings.task}",
    ]
    return " · ".join([*parts, f"seed {settings.seed}"])


def render_trace(
    settings: Settings, report: TraceReport, participation: Participation, lines: Sequence[tuple[str, str]]
) -> str:
    """Return the HTML of the report on a trace.

    Parameters
    ----------
    settings
        Of the trace.
    report, participation
        What was observed.
    lines
        Names and texts of the statistics.
    """
    values = settings.as_mapping()
    rows = [
        [key, "(default)" if values[key] == "" else str(values[key])]
        for key in (name.replace("_", "-") for name in SHOWN)
    ]
    figures = [participation_figure([("", participation)]), _scheme_figure(report)]
    return render(
        Page(
            title=f"Trace {title_of(settings)}",
            subtitle=subtitle_of(settings),
            figures=[figure for figure in figures if figure is not None],
            text_tables=[("Statistics", Table(["statistic", "value"], [[*line] for line in lines]))],
            settings=[("Settings", Table(["setting", "value"], rows))],
            command=shlex.join(sys.argv),
        )
    )


def _scheme_figure(report: TraceReport) -> Figure | None:
    """Return each client's weight in the updates of the schemes, over how often its work arrives."""
    known = np.flatnonzero(np.isfinite(report.rates))
    step = -(-len(known) // SAMPLE) if len(known) else 1
    clients = known[::step]
    schemes = {
        name: ratio[clients] for name, ratio in report.ratios.items() if np.isfinite(ratio[clients]).any()
    }
    if not schemes:
        return None
    about = (
        "Each dot is a client: its weight in the updates of schemes A, B and C (Ruan et al., Theorem 3.1) "
        "over its share of the data, relative to the mean; 1 is unbiased. Lines connect the means of groups."
    )
    notes = [about]
    if step > 1:
        notes.append(f"Every {step}th client is shown.")
    rows = [
        [str(k), percent(report.rates[k], 1), *(f"{ratio[i]:.3f}" for ratio in schemes.values())]
        for i, k in enumerate(clients[:TABLE_ROWS].tolist())
    ]
    return bias_figure(
        {"ratio": {name: (report.rates[clients], ratio) for name, ratio in schemes.items()}},
        {"ratio": "weight in the updates<br>/ share of the data"},
        "rounds in which its work arrives, %",
        [*report.ratios],
        notes,
        Table(["client", "rounds with work, %", *schemes], rows),
    )
