"""`--show-trace`: the statistics of a trace on the console, and a report without training in the run-dir."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from clients.environment import federated_data, make_trace, missing_folder, task_source
from flexfl.comparison.store import identity
from flexfl.config import Settings
from flexfl.engine.memory_check import check_clients
from flexfl.engine.parts import check_task
from flexfl.engine.run_folder import slug
from flexfl.ground.contract.fit import planned_steps
from flexfl.ground.specs import bind
from flexfl.ground.wording import say
from flexfl.report.trace_page import BY_CLIENT, SHOWN, Collected, render_trace, subtitle_of, title_of
from flexfl.report.trace_report import observe
from flexfl.report.trace_text import describe
from flexfl.tasks import PARTITIONS, SIZES

MOST_NAMES = 20  # of devices that are shown


def show_trace(settings: Settings, console: Console) -> dict[str, Any]:
    """Evaluate the trace of the settings, print its statistics and write its page.

    Returns
    -------
    dict
        The statistics (`TraceReport`, without those by client), and `page`, its path; for a trace recorded
        from devices with names, also `devices`, the name for each client.

    Raises
    ------
    ValueError
        The settings are invalid, or the page cannot be written.
    """
    check_clients(settings.num_clients)
    trace = make_trace(settings)
    sizes, source = data_sizes(settings)
    work = (settings.local_steps, settings.local_epochs, settings.batch_size)
    planned = np.array([planned_steps(*work, n) for n in sizes.tolist()], np.int64)
    collected = Collected(trace, settings.num_rounds)
    report = observe(trace, settings.num_rounds, sizes, planned, collected.add)
    lines = [*describe(report), ("shares", source)]
    if trace.devices:
        lines.append(("devices", _named(trace.devices)))
    if settings.clients_per_round:
        lines.append(("note", "sampling (clients-per-round) is ignored: all online clients are selected"))
    path = _write(settings, render_trace(settings, report, collected.participation(report.online), lines))
    print_lines(
        console, [("trace", f"{title_of(settings)} · {subtitle_of(settings)}"), *lines, ("page", str(path))]
    )
    shown = {key: value for key, value in asdict(report).items() if key not in BY_CLIENT} | {
        "page": str(path)
    }
    return shown | {"devices": list(trace.devices)} if trace.devices else shown


def print_lines(console: Console, lines: Sequence[tuple[str, str]]) -> None:
    """Print names and texts; on a terminal, lines are broken between words only, never inside a number."""
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        parts = [text]
        if console.is_terminal:
            room = max(20, console.width - width - 2)
            parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        for i, part in enumerate(parts):
            say(console, f"{'' if i else name:{width}}  {part}")


def _named(devices: Sequence[str]) -> str:
    """Say which clients are which devices, the first ones of many."""
    names = [
        f"{client} {json.dumps(name, ensure_ascii=False)}" for client, name in enumerate(devices) if name
    ]
    others = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"by order of appearance, clients {', '.join(names[:MOST_NAMES])}{others}"


def data_sizes(settings: Settings) -> tuple[NDArray[np.int64], str]:
    """Return the number of examples of each client, shape (N,), and a description of their source.

    They are equal if the task's data are not on this machine or cannot be divided among so many clients: a
    trace can be inspected without data.

    Raises
    ------
    ValueError
        The settings name a task, partition or sizes that do not exist.
    """
    check_task(settings)
    missing = missing_folder(settings)
    name = settings.partition or task_source(settings).default_partition
    if settings.partition:
        bind("partition", PARTITIONS, settings.partition)
    bind("sizes", SIZES, settings.sizes)
    equal = np.ones(settings.num_clients, np.int64)
    if missing is not None:
        return equal, f"equal, as the data of {settings.task} are not in {missing}"
    try:
        sizes = federated_data(settings).sizes
    except ValueError as error:
        return equal, f"equal ({' '.join(str(error).split())})"
    divided = f", partition {name}, sizes {settings.sizes}" if name else ""
    return sizes, f"p^k by the examples of {settings.task}{divided}"


def _write(settings: Settings, text: str) -> Path:
    """Write the page under a name made of all that it depends on: no other page is overwritten."""
    shown = replace(Settings(), **{name: getattr(settings, name) for name in SHOWN})
    parts = (settings.trace, settings.arrivals, settings.departures)
    name = slug(filter(None, parts), 80)
    about = f"{slug([settings.task], 20)}-{settings.num_clients}x{settings.num_rounds}-seed{settings.seed}"
    path = Path(settings.run_dir) / f"trace-{name}-{about}-{identity(shown)}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"run-dir {settings.run_dir}: {error.strerror}") from None
    return path
