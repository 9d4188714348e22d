"""`--show-trace`: the summary of a trace on the console, and its picture in the run-dir."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from clients.environment import federated_data, make_trace, task_source
from flexfl.config import Settings
from flexfl.contract.fit import planned_steps
from flexfl.engine.experiment import check_task
from flexfl.engine.report.trace_page import HeatMap, page
from flexfl.engine.report.trace_report import describe, observe
from flexfl.engine.run_folder import slug
from flexfl.engine.wording import count
from flexfl.specs import bind, options_of
from flexfl.tasks import PARTITIONS, SIZES, TASKS

MOST_NAMES = 20  # of devices that are shown


def show_trace(settings: Settings, console: Console) -> dict[str, Any]:
    """Evaluate the trace of the settings, print its summary and draw it.

    Returns
    -------
    dict
        The statistics (`TraceReport`), and `page`, the path of the picture; for a trace recorded from devices
        with names, also `devices`, the name for each client.

    Raises
    ------
    ValueError
        The settings are invalid, or the picture cannot be written.
    """
    trace = make_trace(settings)
    sizes, source = data_sizes(settings)
    work = (settings.local_steps, settings.local_epochs, settings.batch_size)
    if min(settings.local_steps, settings.batch_size + 1, settings.local_epochs + 1) < 1:
        raise ValueError("local-steps must be at least 1, batch-size and local-epochs at least 0")
    planned = np.array([planned_steps(*work, n) for n in sizes.tolist()], np.int64)
    heat = HeatMap(settings.num_clients, settings.num_rounds)
    report = observe(trace, settings.num_rounds, sizes, planned, heat.add)
    clients, rounds = count(settings.num_clients, "client"), count(settings.num_rounds, "round")
    title = " ".join(
        [settings.trace]
        + [f"{n}={getattr(settings, n)}" for n in ("arrivals", "departures") if getattr(settings, n)]
        + [f"· {clients} · {rounds} · seed {settings.seed}"]
    )
    lines = [*describe(report), ("shares", source)]
    if trace.devices:
        lines.append(("devices", _named(trace.devices)))
    if settings.clients_per_round:
        lines.append(("note", "sampling (clients-per-round) is ignored: all online clients are selected"))
    path = _write(settings, page(title, lines, heat, report.online))
    width = max(len(name) for name, _ in lines)
    for text in (title, *(f"{name:{width}}  {text}" for name, text in lines), f"{'picture':{width}}  {path}"):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    shown = asdict(report) | {"page": str(path)}
    return shown | {"devices": list(trace.devices)} if trace.devices else shown


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
    factory, options = bind("task", TASKS, settings.task)
    check_task(settings)
    name = settings.partition or task_source(settings).default_partition
    if settings.partition:
        bind("partition", PARTITIONS, settings.partition)
    bind("sizes", SIZES, settings.sizes)
    equal = np.ones(settings.num_clients, np.int64)
    folder = options.get("data_dir", settings.data_dir)
    if "data-dir" in options_of(factory) and not Path(folder).is_dir():
        return equal, f"equal, as the data of {settings.task} are not in {folder}"
    try:
        sizes = federated_data(settings).sizes
    except ValueError as error:
        return equal, f"equal ({' '.join(str(error).split())})"
    divided = f", partition {name}, sizes {settings.sizes}" if name else ""
    return sizes, f"p^k by the examples of {settings.task}{divided}"


def _write(settings: Settings, text: str) -> Path:
    """Write the picture under a name made from the settings; the same settings overwrite it."""
    parts = (settings.trace, settings.arrivals, settings.departures)
    name = slug(filter(None, parts), 100)
    size = f"{settings.num_clients}x{settings.num_rounds}"
    path = Path(settings.run_dir) / f"trace-{name}-{size}-seed{settings.seed}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"run-dir {settings.run_dir}: {error.strerror}") from None
    return path
