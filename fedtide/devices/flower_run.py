"""A run under `flwr run`: the same rounds, with clients that are reached through Flower's Grid."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtide.base.display import display
from fedtide.base.errors import RunError, SettingsError, told
from fedtide.base.wording import new_console
from fedtide.config import Settings
from fedtide.devices.connected import ConnectedClients
from fedtide.devices.deadlines import RoundDeadlines
from fedtide.devices.event_grid import EventGrid
from fedtide.devices.flower_compat import is_simulated
from fedtide.devices.grid import GridTransport
from fedtide.devices.identities import Identities
from fedtide.engine.checkpoints.resume import settings_of
from fedtide.engine.experiment import prepare
from fedtide.engine.interrupts import deferring, stopping_at_once
from fedtide.engine.run import drive
from fedtide.engine.run_folder import RunFolder
from fedtide.loggers.registry import logger_types, watching
from fedtide.plan import Plan
from fedtide.report.make import report_run
from fedtide.tasks.data import preprocessing_of
from traces import Trace


def run_on_grid(grid: Grid, settings: Settings) -> None:
    """Run an experiment on the clients of a Grid.

    On devices, clients are there when they are connected, unless the run config names a trace, arrivals or
    departures: then these are replayed, as in a simulation. SettingsError: the settings are invalid, or too
    few clients connect in time. RunError: the run has failed or was cut off, or no reply ever counted; the
    run folder is complete.
    """
    try:
        with display():
            _run(grid, settings)
    except (SettingsError, RunError):
        sys.tracebacklimit = 0  # Flower prints the traceback of all that it catches
        raise
    except Exception as error:
        error.add_note(told(error))
        raise


def _run(grid: Grid, settings: Settings) -> None:
    logger_types(settings.log)
    # Flower chooses this process's working directory: users need the full path to find the results.
    settings = replace(settings, run_dir=str(Path(settings.run_dir).resolve()))
    simulated = is_simulated(grid)
    replays = simulated or names_trace(grid, settings)
    if not replays:
        settings = replace(settings, trace="always")
    if settings.resume:
        settings = replace(settings, resume=str(Path(settings.resume).resolve()))
    settings = settings_of(settings.as_mapping(), "run-config")
    scheduled = replays or bool(settings.arrivals or settings.departures)
    if scheduled and settings.max_absence:
        raise SettingsError("max-absence: here trace, arrivals and departures decide who is a member")
    if settings.round_ends and settings.min_replies:
        raise SettingsError(
            "min-replies and round-ends both say with how many replies a round ends: give one"
        )
    plan = Plan.of(settings)
    if plan.options.stop_late and not replays:
        raise SettingsError("stop-late: nothing stops the task of a device; max-lag alone discards its reply")
    nodes = _transport(grid, settings, simulated, replays)
    nodes.reachable()  # asks them to identify themselves, which they do while the data are loaded

    def observed() -> Trace:
        if scheduled:
            return plan.trace
        founders = _connect(nodes, np.arange(settings.num_clients), settings, simulated)
        in_event_time = settings.round_ends > 0
        return ConnectedClients(settings.num_clients, nodes, founders, settings.max_absence, in_event_time)

    experiment = prepare(plan, tune=False, observed=None if replays else observed)
    trace, roster = experiment.trace, experiment.strategy.roster
    if not simulated:  # a board may have data of its own, of which the server's split says nothing
        roster.first_size[:] = 0
        nodes.preprocessing = preprocessing_of(experiment.data).to_json()
    if isinstance(trace, ConnectedClients):
        trace.roster = roster
    else:  # in a simulation also those that arrive later: the bits must not depend on when a node answers
        there = trace.round(1).member | simulated
        _connect(nodes, np.flatnonzero(there), settings, simulated)
    if simulated:
        nodes.data_less = {*np.flatnonzero(experiment.data.sizes == 0).tolist()}
    transport = experiment.timed(nodes)
    folder = RunFolder(plan, flower_run=str(grid.run.run_id))
    nodes.resumed = folder.flower_run if folder.resumed else ""
    console = new_console()
    watch = partial(watching, settings.log, experiment.data.criterion.metric, console)
    with deferring():  # a signal must not end this process while results are written
        ended = drive(experiment, transport, folder, console, watch, stopping_at_once)
        report_run(experiment, ended, folder.path, console)
    summary = ended.summary
    if "failed" in summary:
        raise RunError(f"{summary['failed']}; {folder.path} has what was done")
    if summary["interrupted"]:  # a SuperLink that is back would take the run for completed
        raise RunError(f"interrupted; --run-config 'resume=\"{folder.path}\"' resumes it")
    if summary["no_reply_counted"]:
        raise RunError(f"no reply ever counted; {folder.path}/metrics.jsonl names the reasons")


def _transport(grid: Grid, settings: Settings, simulated: bool, replays: bool) -> GridTransport:
    """Return what reaches the clients; if they replay a trace, its clock ends the rounds of event time."""
    deadlines = RoundDeadlines(settings.round_deadline)
    earlier = None if simulated else Identities(settings.run_dir, grid.run.fab_hash)
    if settings.round_ends and not replays:
        limit = settings.most_clients
        return EventGrid(grid, settings.num_clients, deadlines, settings.round_ends, limit, earlier)
    known = deadlines if settings.round_deadline or not simulated else None
    return GridTransport(grid, settings.num_clients, known, settings.min_replies, replays, earlier)


def names_trace(grid: Grid, settings: Settings) -> bool:
    """Whether the user has chosen the trace: for this run, or in pyproject.toml."""
    return "trace" in grid.run.override_config or settings.trace != Settings().trace


def _connect(
    nodes: GridTransport, members: NDArray[np.intp], settings: Settings, simulated: bool
) -> NDArray[np.intp]:
    """Return which of these clients are connected, once they are enough; ValueError: too few, in time."""
    least = min(settings.min_nodes or len(members), len(members))
    connected = nodes.connect(members, settings.connect_timeout, least)
    if len(connected) >= least:
        return connected
    missing_nodes = (
        f"only {len(connected)} of num-clients={settings.num_clients} are connected after "
        f"{settings.connect_timeout:.0f} s"
    )
    if simulated:
        advice = f"for a simulation give --federation-config 'num-supernodes={settings.num_clients}'"
        raise SettingsError(f"{missing_nodes}; {advice}")
    missing = ", ".join(map(str, np.setdiff1d(members, connected).tolist()))
    nameless = ", ".join(nodes.nodes.unidentified())
    raise SettingsError(
        f"{missing_nodes}; {least} are needed (min-nodes); clients {missing} are missing"
        + (f"; nodes without a client: {nameless}" if nameless else "")
        + "; start their SuperNodes, or start with fewer: --run-config 'min-nodes=...'"
    )
