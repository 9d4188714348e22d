"""`--show-trace`: the statistics of a trace, by rounds or in event time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from clients.environment import federated_data, make_trace, missing_folder, task_source
from fedtide.analysis.client_numbers import SAMPLE
from fedtide.config import Settings
from fedtide.engine.memory_check import check_clients
from fedtide.ground.contract.fit import planned_steps
from fedtide.ground.specs import bind
from fedtide.ground.wording import client_name, count
from fedtide.report import plots
from fedtide.report.bias_figure import bias_figure
from fedtide.report.figure import Figure, Table
from fedtide.report.participation import Participation, StateGrid, began_at
from fedtide.report.participation_figure import participation_figure
from fedtide.report.timeline_report import show_timeline
from fedtide.report.trace_page import show
from fedtide.report.trace_statistics import Bias, SpellLengths, TraceReport, observe
from fedtide.tasks import PARTITIONS, SIZES
from traces import Trace

BY_CLIENT = ("rates", "ratios")  # of a report: too long for --json
ABOUT_SCHEMES = (
    "Each dot is a client: its weight in the updates of schemes A, B and C (Ruan et al., Theorem 3.1) "
    "divided by its share of the data, relative to the mean: 1 is unbiased. Lines connect means of groups."
)
TABLE_ROWS = 200


def show_trace(settings: Settings, console: Console) -> dict[str, Any]:
    """Evaluate the trace of the settings, print its statistics and write its page.

    Returns the statistics (`TraceReport`, without those by client), and `page`, its path; for a trace
    recorded from devices with names, also `devices`, the name for each client. In event time, see
    `show_timeline`. ValueError: the settings are invalid, or the page cannot be written.
    """
    check_clients(settings.num_clients)
    trace = make_trace(settings)
    if settings.round_ends:
        return show_timeline(settings, trace, console)
    sizes, source = data_sizes(settings)
    work = (settings.local_steps, settings.local_epochs, settings.batch_size)
    planned = np.array([planned_steps(*work, n) for n in sizes.tolist()], np.int64)
    grid = StateGrid(trace.num_clients, range(1, settings.num_rounds + 1))
    report = observe(trace, settings.num_rounds, sizes, planned, grid.add)
    participation = participation_of(trace, report, grid)
    lines = [*describe(report, trace.devices, participation.began), ("shares", source)]
    if settings.clients_per_round:
        lines.append(("note", "sampling (clients-per-round) is ignored: all online clients are selected"))
    figures = [participation_figure([("", participation)]), _scheme_figure(report, trace.devices)]
    path = show(settings, trace.devices, lines, figures, console)
    shown = {key: value for key, value in asdict(report).items() if key not in BY_CLIENT}
    return shown | {"page": str(path)} | ({"devices": list(trace.devices)} if trace.devices else {})


def describe(
    report: TraceReport, devices: Sequence[str] = (), began: float | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary, each a name and a text.

    `devices` are those of the clients, and `began` is when virtual time did, see `Participation`.
    """
    if (seconds := report.virtual_seconds) is not None:
        period = "" if began is None else f", {plots.date(began)} to {plots.date(began + seconds)} UTC"
        yield "virtual time", f"{seconds / 3600:.1f} hours{period}"
    fractions = [(online, t) for t, online in enumerate(report.online, start=1) if online is not None]
    if fractions:
        mean = sum(online for online, _ in fractions) / len(fractions)
        (low, first), (high, last) = min(fractions), max(fractions, key=lambda pair: (pair[0], -pair[1]))
        ends = f"lowest {low:.1%} (round {first}), highest {high:.1%} (round {last})"
        yield "online", f"{mean:.1%} of the members on average, {ends}"
    yield "sessions", _spells(report.sessions)
    yield "gaps", _spells(report.gaps)
    partly = f"{report.incomplete:.1%} incomplete (with {report.finished:.1%} of E on average)"
    yield "work", f"of those online, {report.complete:.1%} complete, {partly}, {report.dropped:.1%} dropped"
    yield "longest absence", _longest(report.gaps, devices)
    names = ", ".join(client_name(k, devices) for k in report.never_seen_first)
    more = ", ..." if report.never_seen > len(report.never_seen_first) else ""
    yield "never seen", f"{count(report.never_seen, 'client')}: {names}{more}" if names else "none"
    holds = f"holds in these rounds for E >= {report.availability_period}"
    fails = "does not hold in these rounds: some member is never online"
    yield "Assumption 4", f"(FedLaAvg) {fails if report.availability_period is None else holds}"
    yield "tau_max", f"(MimiC) without a reply for at most {_longest(report.unanswered, devices)}"
    for bias in report.bias:
        yield bias.scheme, _weights(bias, devices)


def _spells(spells: SpellLengths) -> str:
    if not spells.count:
        return "none"
    lengths = f"mean {spells.mean:.1f} rounds, median {spells.median}, longest {spells.longest}"
    return f"{count(spells.count, 'spell')}, {lengths}"


def _longest(spells: SpellLengths, devices: Sequence[str]) -> str:
    if not spells.count:
        return "0 rounds"
    return f"{count(spells.longest, 'round')} (client {client_name(spells.longest_of, devices)})"


def _weights(bias: Bias, devices: Sequence[str]) -> str:
    if bias.minimum is None:
        return "no update ever counts"
    favoured, neglected = (
        ", ".join(f"{client_name(client, devices)}: {ratio:.2f}" for client, ratio in pairs)
        for pairs in (bias.favoured, bias.neglected)
    )
    excluded = f"; {count(bias.excluded, 'client')} excluded throughout" if bias.excluded else ""
    spread = f"lowest {bias.minimum:.2f}, median {bias.median:.2f}, highest {bias.maximum:.2f}"
    update = f"update {bias.scale:.1%} of full participation"
    return f"{spread}; favours {favoured}; neglects {neglected}{excluded}; {update}"


def participation_of(trace: Trace, report: TraceReport, grid: StateGrid) -> Participation:
    """Return the participation in all rounds of a trace that were observed."""
    late = "Late work arrives in a later round. Until then its client gets no new task, which is not shown."
    notes = [*([late] if trace.has_late_replies else []), *grid.notes]
    seconds = [trace.seconds(t) for t in grid.rounds]
    hours = None if seconds[-1] is None else np.array(seconds, np.float64) / 3600
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
    rows = [
        [
            client_name(k, devices),
            plots.percent(report.rates[k], 1),
            *(f"{ratio[i]:.3f}" for ratio in schemes.values()),
        ]
        for i, k in enumerate(clients[:TABLE_ROWS].tolist())
    ]
    dots = {name: (report.rates[clients], ratio) for name, ratio in schemes.items()}
    return bias_figure(
        {"weight in the updates<br>/ share of the data": dots},
        "rounds in which its work arrives, %",
        [*report.ratios],
        notes,
        Table(["client", "rounds with work, %", *schemes], rows),
    )


def data_sizes(settings: Settings) -> tuple[NDArray[np.int64], str]:
    """Return the number of examples of each client, shape (N,), and a description of their source.

    They are equal if the task's data are not on this machine or cannot be divided among so many clients: a
    trace can be inspected without data. ValueError: the settings name what does not exist.
    """
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
