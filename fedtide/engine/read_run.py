"""Reading run folders: the only reader, for folders that may be unfinished, old, or edited by hand."""

from __future__ import annotations

import csv
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, Literal

from fedtide.config import Settings
from fedtide.config.settings import MAX_BYTES, MAX_COUNT, RECORDED, shown
from fedtide.engine.history import History
from fedtide.engine.observers import Record
from fedtide.ground import dotted
from fedtide.ground.errors import SettingsError
from fedtide.ground.files import open_regular, parse_json, parse_toml, read_text
from fedtide.tasks import ACCURACY, Metric

MAX_LINE = 64 << 20  # bytes of a record or of a JSON file: a round of a million clients takes 26 MB
SETTINGS = {f.name.replace("_", "-") for f in fields(Settings)} - set(RECORDED)

NAMES = "clients.csv"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run folder: its `config.toml` and `summary.json`, and its rounds' records if these were read."""

    path: Path
    config: Mapping[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)  # empty if there is none, as after a killed process
    records: Sequence[Record] = ()  # starting with round 0
    columns: History | None = field(default=None, compare=False)  # of the records, where these are not kept

    @cached_property
    def history(self) -> History:
        """Its records as columns, read from its folder if necessary."""
        if self.columns is not None:
            return self.columns
        return History.of(self.records or records_in(self.path, lenient=True))

    @cached_property
    def settings(self) -> Settings:
        """Its settings; those that an older version did not record have their defaults.

        Parts that are not of fedtide are not imported, unless the user has named or trusted them.
        ValueError: `config.toml` has values that no run can have.
        """
        values, file = {k: v for k, v in self.config.items() if k in SETTINGS}, self.path / "config.toml"
        dotted.distrust(values, str(file))
        return Settings.from_mapping(values, str(file))

    @property
    def versions(self) -> Mapping[str, Any]:
        """The versions of Python, fedtide and the packages that results may depend on."""
        return self._recorded("versions")

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The specs of its parts with every option; empty for runs of older versions."""
        return self._recorded("resolved")

    def _recorded(self, key: str) -> Mapping[str, Any]:
        found = self.config.get(key)
        return found if isinstance(found, dict) else {}

    @property
    def version(self) -> str:
        """The version of fedtide that made it."""
        return str(self.versions.get("fedtide", "unknown"))

    @property
    def metric(self) -> Metric:
        """The metric of its task; accuracy where an older version did not record it."""
        metric = self.summary.get("metric")
        return Metric(**metric) if isinstance(metric, dict) else ACCURACY

    @property
    def final(self) -> float:
        """The final value of the metric; NaN if there is none."""
        value = self.summary.get("final", {}).get(self.metric.key)
        return math.nan if value is None else float(value)

    @cached_property
    def last_values(self) -> Mapping[str, Any]:
        """The final values by key; of a run that did not end, those of its last evaluation."""
        if self.summary:
            return dict(self.summary.get("final", {}))
        rows = self.history.evaluated("loss")
        values = {key: self.history.column(key)[rows[-1:]].tolist() for key in (self.metric.key, "loss")}
        return {key: value[0] for key, value in values.items() if value}

    @property
    def last_round(self) -> int:
        """The last round with a record; 0 without any."""
        return int(self.history.rounds[-1]) if len(self.history) else 0

    @property
    def stopped(self) -> str:
        """The setting that ended it before its last round; empty if none did."""
        return str(self.summary.get("stopped", ""))

    @property
    def status(self) -> Literal["finished", "interrupted", "failed", "unfinished"]:
        """How it ended; `unfinished` means that it is running or that its process was killed."""
        if not self.summary:
            return "unfinished"
        if "failed" in self.summary:
            return "failed"
        return "interrupted" if self.summary.get("interrupted") else "finished"

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names of its clients, by number; () if they have none or these cannot be read."""
        try:
            rows = [*csv.reader(StringIO(read_text(self.path / NAMES, MAX_LINE), newline=""))]
            return tuple(name.removeprefix("'") for _, name in rows[1:])  # see `csv_text`
        except (OSError, ValueError, csv.Error):
            return ()

    @property
    def problem(self) -> str:
        """Why it did not finish, such as "failed: No space left on device"; empty if it did."""
        if self.status == "failed":
            return f"failed: {self.summary['failed']}"
        if self.status == "interrupted":
            return f"was interrupted by {self.summary.get('signal', 'a signal')}"
        return "" if self.summary else "did not finish: there is no summary.json"


def read_run(path: Path, trust: bool = False, records: bool = False) -> Run:
    """Read a run folder; a summary that is not one is left out.

    `trust`: whether the parts that it names may be imported; `records`: whether to read the records of its
    rounds, see `records_in`. ValueError: the folder has no `config.toml`, or it cannot be read.
    """
    file = path / "config.toml"
    try:
        config = read_config(path)
    except (FileNotFoundError, NotADirectoryError):
        raise SettingsError(f"{path} is not a run folder: it has no config.toml") from None
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    if trust:
        dotted.trust(config)
    found = [*records_in(path, lenient=True)] if records else ()
    return Run(path, config, _summary(path / "summary.json"), found)


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder, ordered by name; folders that cannot be read are left out."""
    runs = []
    for path in sorted(folder.iterdir()):
        try:
            runs.append(read_run(path))
        except ValueError:
            continue
    return runs


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
                    record = _record(line)
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
            log.warning("%s: %s", file, error.strerror or error)


def _record(line: bytes) -> Record:
    """Return the record of a round; ValueError names its fault."""
    record = parse_json(line.decode("utf-8", errors="replace"))
    if not isinstance(record, dict):
        raise ValueError("not a record of a round")
    if not isinstance(number := record.get("round"), int) or not 0 <= number <= MAX_COUNT:
        raise ValueError("not a record of a round: it has no round number")
    for keys, kind, fits in _KINDS:
        for key in keys:
            if (value := record.get(key)) is not None and not fits(value):
                raise ValueError(f"{key} of round {number} is {shown(value)[:60]}, not {kind}")
    return record


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True is not."""
    return type(value) in (int, float)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _list_of(*fit: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(any(f(item) for f in fit) for item in value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(item is None or is_number(item) for item in value.values())


def _are_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_number, value))


_KINDS: list[tuple[tuple[str, ...], str, Callable[[Any], bool]]] = [
    (("active", "selected"), "a list of clients", _list_of(_is_count, lambda name: isinstance(name, str))),
    (("steps",), "a list of numbers of steps", _list_of(_is_count, lambda steps: steps is None)),
    (("bytes_up", "bytes_down", "loss", "learning_rate", "virtual_seconds"), "a number", is_number),
    (("device_seconds", "begin", "idle"), "a number", is_number),
    (("replied", "dropped"), "a list of tasks with moments", _list_of(lambda task: _are_numbers(task, 3))),
    (("withdrawn",), "a list of tasks", _list_of(lambda task: _are_numbers(task, 2))),
    (("failed",), "an object", lambda value: isinstance(value, dict)),
    (("seconds",), "an object of numbers", _is_numbers),
    (("events", "late"), "a list of objects", _list_of(lambda event: isinstance(event, dict))),
]


def _summary(file: Path) -> dict[str, Any]:
    """Return the content of a summary file; nothing, with a warning, if no run can have written it."""
    summary = read_json(file)
    if summary is None:
        return {}
    final = summary.get("final", {}) if isinstance(summary, dict) else None
    metric = summary.get("metric") if isinstance(summary, dict) else None
    if not _is_numbers(final) or not (metric is None or _is_metric(metric)):
        log.warning("%s is not the summary of a run; ignored", file)
        return {}
    return dict(summary)


def _is_metric(value: Any) -> bool:
    kinds = {"name": str, "higher_is_better": bool, "is_share": bool}
    return isinstance(value, dict) and {key: type(item) for key, item in value.items()} == kinds
