"""The command line of fedtide, and the ServerApp of `flwr run`.

python sim.py                                  # handwritten digits; clients come and go
python sim.py --strategy fedavg --num-rounds 20
python sim.py --strategy fedavg mifa --seed 0 1 2   # several values: a comparison
python sim.py --list
python sim.py --show-trace phones --num-clients 100 --num-rounds 300
python sim.py --rehearse examples/fleet.csv         # which method for the devices of this log?
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the imports take seconds: Ctrl-C ends them silently

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtide.cli.flags import make_parser
from fedtide.config import Settings
from fedtide.ground.allowed import did_you_mean

server_app = ServerApp()


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run under `flwr run`: the settings are the run configuration."""
    from fedtide.devices.flower_run import run_on_grid  # imports PyTorch, which the command line may not need

    run_on_grid(grid, Settings.from_mapping(context.run_config, "run-config"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = make_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        hint = did_you_mean(flag, parser.flags) if flag else "; settings are written --NAME VALUE"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def imported() -> None:
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)

    from fedtide.cli.command import execute  # which --help does not need

    return execute(parser, arguments, imported)


if __name__ == "__main__":
    sys.exit(main())
