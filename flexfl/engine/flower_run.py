"""A run under `flwr run`: the same rounds, with the clients behind Flower's Grid."""

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


def run_on_grid(grid: Grid, settings: Settings) -> None:
    """Run the settings' experiment on the clients of a Grid.

    Raises
    ------
    ValueError
        The settings cannot be met, or fewer than `num-clients` clients connect.
    """
    # Flower starts this process in a folder of its choice: say where the results lie.
    settings = replace(settings, run_dir=str(Path(settings.run_dir).resolve()))
    experiment = prepare(settings, tune=False)
    transport = GridTransport(grid, settings.num_clients)
    transport.connect(np.flatnonzero(experiment.trace.round(1).member), settings.connect_timeout)
    console = Console()
    drive(experiment, transport, remember(experiment.trace), RunFolder(settings), console)
