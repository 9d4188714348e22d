"""What `--show-trace` leaves: lines of statistics on the console and, in the run-dir, a page with plots."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedtide.comparison.store import identity
from fedtide.config import Settings
from fedtide.engine.run_folder import slug
from fedtide.ground.errors import SettingsError
from fedtide.ground.wording import say
from fedtide.report import plots
from fedtide.report.figure import Figure, Table, values_table
from fedtide.report.page import Page, render

# The settings that the page depends on: availability, numbers of steps and of examples.
SHOWN = (
    *("trace", "arrivals", "departures", "num_clients", "num_rounds", "seed"),
    *("local_steps", "local_epochs", "batch_size"),
    *("task", "partition", "sizes", "evaluate_on", "evaluate_clients", "holdout"),
)
EVENT_TIME = ("round_ends", "clients_per_round", "until")  # and these, in event time
MAX_NAMES = 20  # of devices that are shown

Lines = Sequence[tuple[str, str]]
"""Statistics, each a name and a text."""


def show(
    settings: Settings,
    devices: Sequence[str],
    lines: Lines,
    figures: Sequence[Figure | None],
    console: Console,
) -> Path:
    """Print the statistics of a trace and write its page, with those figures that there are; return its path.

    `devices` are those of the trace. ValueError: the page cannot be written.
    """
    lines = [*lines, *([("devices", _named(devices))] if devices else [])]
    keys = (*SHOWN, *(EVENT_TIME if settings.round_ends else ()))
    values = {name.replace("_", "-"): getattr(settings, name) for name in keys}
    page = Page(
        title=f"Trace {_title(settings)}",
        subtitle=_subtitle(settings),
        figures=[figure for figure in figures if figure is not None],
        text_tables=[("Statistics", Table(["statistic", "value"], [[*line] for line in lines]))],
        settings=[("Settings", values_table("setting", [values]))],
        command=shlex.join(sys.argv),
    )
    path = _write(settings, keys, render(page))
    heading = f"{_title(settings)} · {_subtitle(settings)}"
    print_lines(console, [("trace", heading), *lines, ("page", str(path))])
    return path


def print_lines(console: Console, lines: Lines) -> None:
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
    """List which client is which device, the first ones of many."""
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


def _write(settings: Settings, keys: Sequence[str], text: str) -> Path:
    """Write the page; its name follows from all that it depends on, so that it overwrites no other page."""
    shown = replace(Settings(), **{name: getattr(settings, name) for name in keys})
    parts = (settings.trace, settings.arrivals, settings.departures)
    name = slug(filter(None, parts), 80)
    about = f"{slug([settings.task], 20)}-{settings.num_clients}x{settings.num_rounds}-seed{settings.seed}"
    path = Path(settings.run_dir) / f"trace-{name}-{about}-{identity(shown)}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"run-dir {settings.run_dir}: {error.strerror}") from None
    return path
