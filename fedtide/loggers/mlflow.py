"""MLflow: runs at a tracking server, or in a database in the folder of all runs."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import redirect_stdout
from typing import Any

from fedtide.config import Settings
from fedtide.engine.observers import Record
from fedtide.loggers.base import Logger, finals, hyperparameters, scalars

FLUSH_SECONDS = 1.0  # rounds may take milliseconds, and a call of a server as well
BATCH = 500  # numbers in one call; MLflow takes up to 1000


class MLflow(Logger):
    """MLflow, at MLFLOW_TRACKING_URI, by default the database mlflow.db in run-dir.

    The experiment is MLFLOW_EXPERIMENT_NAME, by default fedtide.
    """

    module = "mlflow"
    _id, _status = "", "FAILED"

    def start(self, settings: Settings) -> None:
        # By default it tries for four minutes, in which the run would stand still.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each new table
        self._waiting: list[Any] = []
        self._flushed = time.monotonic()
        database = f"sqlite:///{self.run.base.resolve() / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedtide"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        tags = {"comparison": self.run.group} if self.run.group else {"run_dir": str(self.run.folder)}
        if self.run.after is not None and self._resume(experiment):
            return
        self._id = self._client.create_run(experiment, run_name=self.run.name, tags=tags).info.run_id
        parameters = [Param(key, str(value)) for key, value in hyperparameters(settings).items()]
        self._client.log_batch(self._id, params=parameters)

    def round(self, record: Record) -> None:
        self._add(scalars(record), record["round"])
        if time.monotonic() - self._flushed > FLUSH_SECONDS or len(self._waiting) > BATCH:
            self._flush()

    def finish(self, summary: dict[str, Any]) -> None:
        self._add(finals(summary), summary["rounds"])
        failed = "FAILED" if "failed" in summary else "FINISHED"
        self._status = "KILLED" if summary["interrupted"] else failed

    def close(self) -> None:
        if self._id:
            self._flush()
            with redirect_stdout(sys.stderr):  # it may print where the run is to be seen
                self._client.set_terminated(self._id, self._status)

    def _resume(self, experiment: str) -> bool:
        """Resume the run of this run's folder, if there is one."""
        folder = str(self.run.folder).replace("'", "")
        found = self._client.search_runs([experiment], f"tags.run_dir = '{folder}'", max_results=1)
        for run in found:
            self._id = run.info.run_id
            self._client.update_run(self._id, status="RUNNING")
        return bool(found)

    def _add(self, numbers: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._waiting += [Metric(name, value, now, step) for name, value in numbers.items()]

    def _flush(self) -> None:
        for start in range(0, len(self._waiting), BATCH):
            self._client.log_batch(self._id, metrics=self._waiting[start : start + BATCH])
        self._waiting, self._flushed = [], time.monotonic()
