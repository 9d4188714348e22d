"""`python sim.py` is the command `fedtide`; `server_app` is what `flwr run` starts."""

from __future__ import annotations

import sys

from fedtide.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtide.config import Settings

server_app = ServerApp()


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run under `flwr run`: the settings are the run configuration."""
    from fedtide.devices.flower_run import run_on_grid  # imports PyTorch, which the command line may not need

    run_on_grid(grid, Settings.from_mapping(context.run_config, "run-config"))
