"""The records of a run's rounds, from a file that somebody may have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from flexfl.config.settings import MAX_COUNT, shown
from flexfl.ground.files import open_regular, parse_json

Record = dict[str, Any]

MOST_LINE = 256 << 20  # bytes of a record: a round of a million clients takes a tenth of that

log = logging.getLogger(__name__)


def records_of(path: Path) -> list[Record]:
    """Return the records of the rounds; of a run that was cut off, those up to the last whole line.

    Lines that are no records are left out, with a warning unless it is the last one.

    Raises
    ------
    ValueError
        A line is too long to be a record.
    """
    found: list[Record] = []
    file_path = path / "metrics.jsonl"
    torn = ""
    try:
        with open_regular(file_path) as file:
            for number in count(1):
                if not (line := file.readline(MOST_LINE + 1)):
                    break
                if len(line) > MOST_LINE:
                    raise ValueError(f"{file_path}, line {number}: longer than {MOST_LINE >> 20} MiB")
                if torn:
                    log.warning("%s; it is left out", torn)
                torn = ""
                try:
                    found.append(_record(line))
                except ValueError as error:
                    torn = f"{file_path}, line {number}: {error}"
    except OSError as error:
        if file_path.exists():
            log.warning("%s: %s", file_path, error.strerror or error)
    return found


def _record(line: bytes) -> Record:
    """Return the record of a round; ValueError says what is wrong with it."""
    record = parse_json(line.decode("utf-8", errors="replace"))
    if not isinstance(record, dict):
        raise ValueError("no record of a round")
    if not isinstance(number := record.get("round"), int) or not 0 <= number <= MAX_COUNT:
        raise ValueError("no record of a round: it has no number of the round")
    for keys, kind, fits in _FITTING:
        for key in keys:
            if (value := record.get(key)) is not None and not fits(value):
                raise ValueError(f"{key} of round {number} is {shown(value)[:60]}, not {kind}")
    return record


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_clients(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(client) is int and 0 <= client < MAX_COUNT for client in value
    )


_FITTING: list[tuple[tuple[str, ...], str, Callable[[Any], bool]]] = [
    (("active", "selected", "steps"), "a list of whole numbers", _are_clients),
    (("bytes_up", "bytes_down", "loss", "learning_rate", "virtual_seconds"), "a number", is_number),
    (("failed",), "an object", lambda value: isinstance(value, dict)),
    (
        ("seconds",),
        "an object of numbers",
        lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
    ),
    (
        ("events",),
        "a list of objects",
        lambda value: isinstance(value, list) and all(isinstance(event, dict) for event in value),
    ),
]
