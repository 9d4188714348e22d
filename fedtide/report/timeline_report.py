"""`--show-trace` in event time: the rounds of a neutral selection, without any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from fedtide.config import Settings
from fedtide.ground.wording import client_name, count, duration
from fedtide.report.event_tasks import TimedRun, tasks_of
from fedtide.report.gantt_figure import gantt_figure
from fedtide.report.lag_figure import lag_figure
from fedtide.report.participation import of_run
from fedtide.report.participation_figure import participation_figure
from fedtide.report.timeline_statistics import Spread, TimelineReport, play, statistics_of
from fedtide.report.trace_page import show
from traces import Trace


def show_timeline(settings: Settings, trace: Trace, console: Console) -> dict[str, Any]:
    """Play the rounds of event time, print their statistics and write the page; see `show_trace`.

    Returns the statistics (`TimelineReport`), and `page` and `devices` as `show_trace` does. ValueError: the
    trace has no event time, or the page cannot be written.
    """
    records = list(play(settings, trace))
    tasks = tasks_of(records, settings.most_clients)
    assert tasks is not None  # there is a round: somebody is online at some time
    report = statistics_of(settings, records, tasks)
    took_part = of_run(records, settings, trace, trace.devices)
    runs = [TimedRun("", tasks, trace.devices)]
    figures = [
        gantt_figure(runs),
        lag_figure(runs, [""]),
        participation_figure([("", took_part)] if took_part else []),
    ]
    path = show(settings, trace.devices, [*describe(report, trace.devices)], figures, console)
    return asdict(report) | {"page": str(path)} | ({"devices": list(trace.devices)} if trace.devices else {})


def describe(report: TimelineReport, devices: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary, each a name and a text; `devices` are those of the clients."""
    yield "virtual time", duration(report.virtual_seconds)
    yield "rounds", f"{report.num_rounds:,}{_rate(report.num_rounds, report)}"
    incomplete = f", {report.incomplete / report.replies:.1%} of them incomplete" if report.replies else ""
    yield "replies", f"{report.replies:,}{_rate(report.replies, report)}{incomplete}"
    numbers = {
        "dropped": report.dropped,
        "lost": report.lost,
        "withdrawn": report.withdrawn,
        "at work at the end": report.at_work,
    }
    yield (
        "other tasks",
        ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number) or "none",
    )
    if report.lag.mean is not None:
        yield "lag", f"changes of the weights per reply: {_spread(report.lag, '{:.3g}'.format)}"
        yield "seconds", f"of a task with a reply: {_spread(report.task_seconds, duration)}"
    yield (
        "idle",
        f"{report.idle:.1%} of the {count(report.limit, 'place')} when rounds begin, by their seconds",
    )
    shares = [share for share in report.online if share is not None]
    if shares:
        yield "online", f"{sum(shares) / len(shares):.1%} of the members when rounds begin"
    names = ", ".join(client_name(k, devices) for k in report.never_asked_first)
    more = ", ..." if report.never_asked > len(report.never_asked_first) else ""
    yield "never asked", f"{count(report.never_asked, 'client')}: {names}{more}" if names else "none"


def _rate(number: int, report: TimelineReport) -> str:
    if not report.hours:
        return ""
    rate = number / report.hours
    return f", {f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} per virtual hour"


def _spread(spread: Spread, shown: Any) -> str:
    names = ("mean", "median", "90th percentile", "largest")
    return ", ".join(
        f"{name} {shown(value)}" for name, value in zip(names, asdict(spread).values(), strict=True)
    )
