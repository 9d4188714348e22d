"""What loggers have in common: where a run belongs, and the numbers of its rounds."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from fedtide.config import Settings
from fedtide.engine.observers import LoggedRun, Observer, Record
from fedtide.engine.records import group_values

_NOT_IN_NAMES = re.compile(r"[^\w.:/ -]")  # of MLflow's metrics
# Counts of clients; in a record they are numbers, or the clients themselves.
CLIENTS = ("selected", "active", "incomplete", "failed", "late", "at_work", "offline")


class Logger(Observer):
    """Base of the loggers: `start`, `round` and `finish` follow a run, see `Observer`.

    Parameters
    ----------
    run
        The run's name, its folder, and the last round before it was resumed.
    """

    module: ClassVar[str]  # what `start` imports, of a package with the logger's name; not of the user's own

    def __init__(self, run: LoggedRun) -> None:
        self.run = run


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a round by name.

    Counts of clients are `clients/active` and so on, seconds by phase `seconds/train`, and numbers of groups
    of clients `groups/participation/never took part/accuracy`.
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key in CLIENTS:
            found[f"clients/{key}"] = float(value if isinstance(value, int) else len(value))
        elif key == "seconds":
            found |= {f"seconds/{phase}": float(seconds) for phase, seconds in value.items()}
        elif key == "groups":
            groups = ((_NOT_IN_NAMES.sub("_", k), v) for k, v in group_values(record, "/").items())
            found |= {name: float(number) for name, number in groups if number is not None}
        elif key == "steps":
            found["local_steps"] = float(sum(steps for steps in value if steps))
        elif key != "round" and _is_number(value):
            found[key] = float(value)
    return found


def finals(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers that a run ended with, by name, `final/...`."""
    values = {**summary["final"], **{key: summary[key] for key in ("rounds", "client_fits", "seconds")}}
    return {f"final/{key}": float(value) for key, value in values.items() if _is_number(value)}


def hyperparameters(settings: Settings) -> dict[str, str | int | float | bool]:
    """Return the settings by name; a list becomes a text with commas."""
    values = settings.as_mapping()
    return {key: ",".join(value) if isinstance(value, list) else value for key, value in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
