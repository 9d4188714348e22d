"""The files of run folders: the only readers of records, summaries and settings."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import open_regular, parse_json, parse_toml, read_text
from fedtide.config.settings import MAX_BYTES
from fedtide.engine.observers import Record
from fedtide.engine.records import is_summary, parse_record

MAX_LINE = 64 << 20  # bytes of a record or of a JSON file: a round of a million clients takes 26 MB
NAMES = "clients.csv"

log = logging.getLogger(__name__)


def weights_file(path: Path, after: int | None = None) -> Path:
    """Return the file of a run folder for the weights after a round, by default for the final ones."""
    return path / ("weights.npz" if after is None else f"weights-{after}.npz")


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of `config.toml` in a run folder; OSError or ValueError if it cannot be read."""
    return parse_toml(read_text(path / "config.toml", MAX_BYTES))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it does not exist or, with a warning, cannot be read."""
    try:
        return parse_json(read_text(path, MAX_LINE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is not JSON: %s", path, error)
        return None


def command_of(content: Mapping[str, Any]) -> str:
    """Return the command line that a file names, as one text; empty if it names none."""
    command = content.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def records_in(path: Path, lenient: bool = False) -> Iterator[Record]:
    """Yield the records of the rounds in a run folder, starting with round 0.

    OSError: `metrics.jsonl` cannot be read. ValueError: a line of it is not a record. `lenient`: a line that
    is no record is skipped with a warning, or without one if it is the last, where the run was cut off; a
    file that cannot be read has no records. A line that is too long to be a record is an error nevertheless.
    """
    file, wrong = path / "metrics.jsonl", ""
    try:
        with open_regular(file) as stream:
            for number in count(1):
                if not (line := stream.readline(MAX_LINE + 1)):
                    return
                if wrong:
                    log.warning("%s; skipped", wrong)
                    wrong = ""
                if len(line) > MAX_LINE:
                    raise SettingsError(f"{file}, line {number}: longer than {MAX_LINE >> 20} MiB")
                try:
                    record = parse_record(line)
                except ValueError as error:
                    wrong = f"{file}, line {number}: {error}"
                    if not lenient:
                        raise SettingsError(wrong) from None
                else:
                    yield record
    except OSError as error:
        if not lenient:
            raise
        if not isinstance(error, FileNotFoundError):
            log.warning("%s: %s", file, why(error))


def read_summary(file: Path) -> dict[str, Any]:
    """Return the content of a summary file; nothing, with a warning, if no run can have written it."""
    summary = read_json(file)
    if summary is not None and not is_summary(summary):
        log.warning("%s is not the summary of a run; ignored", file)
        return {}
    return {} if summary is None else dict(summary)
