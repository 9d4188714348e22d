"""fedtide's engine, run as `sim.py` runs it."""

from __future__ import annotations

import resource
import signal
from typing import Any

from rich.console import Console

from benchmarks.measure import Clock, Job, network_bytes
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.engine.run import drive, virtual_transport
from fedtide.engine.run_folder import RunFolder
from fedtide.plan import Plan


class TimedFolder(RunFolder):
    """A run folder that times the rounds by their records, and ends the run after enough of them."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan)
        self.clock, self.expected = clock, plan.settings.round_ends or plan.settings.clients_per_round
        self.ended, self.carried = 0, network_bytes()  # rounds, and bytes when the first had ended

    def round(self, record: dict[str, Any]) -> None:
        """Record the end of a round in which as many clients replied as should."""
        super().round(record)
        if not record["round"]:
            return
        if self.expected and len(record["active"]) != self.expected:
            raise RuntimeError(f"{len(record['active'])} clients replied, not {self.expected}")
        self.clock.tick()
        self.ended += 1
        if self.ended == 1:
            self.carried = network_bytes()
        if self.clock.enough:
            now = network_bytes()
            if now is not None and self.carried is not None:
                self.clock.note(network_bytes_per_round=(now - self.carried) / (self.ended - 1))
            signal.raise_signal(signal.SIGINT)  # like Ctrl-C: the run ends after this round


def run(job: Job, clock: Clock) -> None:
    """Run the job's `settings`."""
    settings = Settings.from_mapping({**job["settings"], "run-dir": job["scratch"]}, "benchmark")
    experiment = prepare(Plan.of(settings))
    folder = TimedFolder(experiment.plan, clock)
    transport = virtual_transport(experiment)
    ended = drive(experiment, transport, folder, Console(quiet=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in KiB on Linux
    clock.note(weights_sha256=ended.summary["weights_sha256"], driver_peak_bytes=peak)
