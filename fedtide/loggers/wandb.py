"""Weights & Biases: runs at its server, or with WANDB_MODE=offline in the folder of all runs."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from fedtide.config import Settings
from fedtide.engine.observers import Record
from fedtide.loggers.base import Logger, finals, hyperparameters, scalars


class WandB(Logger):
    """Weights & Biases; with WANDB_MODE=offline, runs stay in run-dir until they are sent by `wandb sync`.

    The project is WANDB_PROJECT, by default fedtide.
    """

    module = "wandb"
    _run: Any = None
    _exit_code = 1

    def start(self, settings: Settings) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedtide",
            name=self.run.name,
            group=self.run.group or None,
            id=None if self.run.group else hashlib.sha256(self.run.name.encode()).hexdigest()[:16],
            resume=None if self.run.after is None else "allow",
            dir=os.environ.get("WANDB_DIR") or str(self.run.base),
            config=hyperparameters(settings),
            settings=wandb.Settings(console="off", quiet=True),  # the run prints its progress itself
        )

    def round(self, record: Record) -> None:
        self._run.log(scalars(record), step=record["round"])

    def finish(self, summary: dict[str, Any]) -> None:
        self._run.summary.update(finals(summary))
        self._exit_code = int(summary["interrupted"] or "failed" in summary)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
