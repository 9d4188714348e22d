"""A run under `flwr run`: the same rounds, with clients that are reached through Flower's Grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid
from rich.console import Console

from flexfl.config import Settings
from flexfl.engine.availability import remember
from flexfl.engine.run import drive, prepare
from flexfl.engine.run_folder import RunFolder
from flexfl.engine.transports.grid import GridTransport
from flexfl.engine.transports.late import with_late_replies


def run_on_grid(grid: Grid, settings: Settings) -> None:
    """Run an experiment on the clients of a Grid.

    Raises
    ------
    ValueError
        The settings are invalid, or some members do not connect in time.
    """
    # Flower chooses this process's working directory: the full path tells users where the results are.
    settings = replace(settings, run_dir=str(Path(settings.run_dir).resolve()))
    experiment = prepare(settings, tune=False)
    nodes = GridTransport(grid, settings.num_clients)
    nodes.connect(np.flatnonzero(experiment.trace.round(1).member), settings.connect_timeout)
    transport = with_late_replies(nodes, experiment.trace)
    console = Console()
    drive(experiment, transport, remember(experiment.trace), RunFolder(settings), console)
