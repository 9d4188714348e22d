"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from typing import Any

from fedtide.config import Settings
from fedtide.engine.observers import Record
from fedtide.loggers.base import Logger, finals, hyperparameters, scalars

FLUSH_SECONDS = 10  # so that curves grow during the run


class TensorBoard(Logger):
    """TensorBoard: event files in the run folder, which `tensorboard --logdir runs` shows."""

    module = "torch.utils.tensorboard"
    _writer: Any = None

    def start(self, settings: Settings) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._settings = settings
        after = self.run.after  # later rounds that were logged are hidden
        purge = None if after is None else after + 1
        self._writer = SummaryWriter(str(self.run.folder), purge_step=purge, flush_secs=FLUSH_SECONDS)

    def round(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def finish(self, summary: dict[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        final = finals(summary)
        # SummaryWriter.add_hparams would write to a further folder, which TensorBoard shows as another run.
        for part in hparams(hyperparameters(self._settings), final):
            self._writer.file_writer.add_summary(part)
        for name, value in final.items():
            self._writer.add_scalar(name, value, summary["rounds"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
