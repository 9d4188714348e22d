"""Observers of a run: its folder, the progress display, and loggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtide.config import Settings

Record = dict[str, Any]


class Observer:
    """Follows a run; methods that a subclass does not define do nothing.

    They are called in this order: `recall` for each round before the run was resumed, `start`, `round` for
    each round, `finish`, and always `close`. Only an unexpected exception leaves out `finish`.
    """

    def recall(self, record: Record) -> None:
        """Take the record of a round that was passed on before the run was interrupted."""

    def start(self, settings: Settings) -> None:
        """Start observing a run with these settings."""

    def round(self, record: Record) -> None:
        """Take the record of a round; round 0 is the evaluation before training."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Take the content of `summary.json`: the run has finished, failed, or was interrupted."""

    def close(self) -> None:
        """Release the resources that `start` took; also called if `start` failed."""


@dataclass(frozen=True)
class LoggedRun:
    """A run, as observers name and store it."""

    name: str  # of its folder, or in a comparison what varies
    folder: Path  # for files of the run alone
    base: Path  # for files of all runs, such as a database
    group: str = ""  # the name of its comparison, if it belongs to one
    after: int | None = None  # last round before this process resumed the run; None: a new run


@contextmanager
def observing(observers: Sequence[Observer], settings: Settings) -> Iterator[None]:
    """Start observers, and close them at the end, in reverse order."""
    with ExitStack() as started:
        for observer in observers:
            started.callback(observer.close)
            observer.start(settings)
        yield
