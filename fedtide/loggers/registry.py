"""Loggers by name, as `--log` has them; a logger that fails does not end the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from rich.console import Console

from fedtide.base.errors import SettingsError
from fedtide.base.specs import find
from fedtide.base.wording import say
from fedtide.config import Settings
from fedtide.engine.observers import LoggedRun, Observer, Record, observing
from fedtide.loggers.base import Logger
from fedtide.loggers.mlflow import MLflow
from fedtide.loggers.progress import ProgressReport
from fedtide.loggers.tensorboard import TensorBoard
from fedtide.loggers.wandb import WandB
from fedtide.tasks import Metric

LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def logger_types(log: str) -> dict[str, type[Logger]]:
    """Return the loggers that the setting `log` names, by name.

    A dotted name is a class of the user's own. ValueError: a name is unknown or given twice, or a logger's
    package is not installed.
    """
    found: dict[str, type[Logger]] = {}
    for name in filter(None, (part.strip() for part in log.split(","))):
        if name in found:
            raise SettingsError(f"log {log}: {name} is given twice")
        if ":" in name:
            raise SettingsError(f"log {name}: loggers take no options")
        found[name] = find("log", LOGGERS, name)
        if name in LOGGERS:
            _require(name, found[name].module)
    return found


def _require(name: str, module: str) -> None:
    try:
        imported = import_module(module)
    except ImportError as error:
        reason = f" ({' '.join(str(error).split())})"
    else:
        if getattr(imported, "__file__", None):
            return
        reason = ""  # a folder of this name, such as Weights & Biases leaves, is not a package
    raise SettingsError(f"--log {name}: the package is not installed{reason}; pip install {name}")


class Guarded(Observer):
    """Passes everything on until the logger raises; then it warns, and the run continues without it."""

    def __init__(self, name: str, make: Callable[[], Observer], console: Console) -> None:
        self.name, self.console = name, console
        self.failed = False
        self.logger = Observer()
        self._guarded(lambda: setattr(self, "logger", make()))
        for method in ("start", "round", "finish", "close"):
            setattr(self, method, partial(self._pass_on, method))

    def _pass_on(self, method: str, *arguments: Any) -> None:
        if not self.failed or method == "close":
            self._guarded(lambda: getattr(self.logger, method)(*arguments))

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # whatever goes wrong at a server or on a disk, the run is worth more
            if self.failed:  # already reported
                return
            self.failed = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            say(self.console, f"warning: --log {self.name} failed: {reason}; the run continues without it")


def loggers_of(log: str, run: LoggedRun, console: Console) -> list[Observer]:
    """Return the loggers that the setting `log` names, guarded; see `logger_types`."""
    return [Guarded(name, partial(logger, run), console) for name, logger in logger_types(log).items()]


def watching(log: str, metric: Metric, console: Console, run: LoggedRun) -> list[Observer]:
    """Return the loggers of a run, and the display of its progress."""
    return [*loggers_of(log, run, console), ProgressReport(console, metric)]


def log_finished(
    settings: Settings, records: Iterable[Record], summary: dict[str, Any], run: LoggedRun, console: Console
) -> None:
    """Log a run that has ended already."""
    loggers = loggers_of(settings.log, run, console)
    with observing(loggers, settings):
        for record in records:
            for logger in loggers:
                logger.round(record)
        for logger in loggers:
            logger.finish(summary)
