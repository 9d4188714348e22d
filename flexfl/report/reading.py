"""What a report is about: the runs that folders hold, and how they differ."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flexfl.comparison.store import metric_of
from flexfl.config import Settings
from flexfl.config.settings import EXECUTION_ONLY, MAX_BYTES, RECORDED, shown
from flexfl.ground.files import parse_json, parse_toml, read_text
from flexfl.report.records import MOST_LINE, is_number
from flexfl.tasks import Metric

COMPARISON = "comparison.json"  # what a comparison folder says besides its tables
CELLS = "cells.json"
UNIMPORTANT = EXECUTION_ONLY | {"cohort"}  # no reason to tell two runs apart
KNOWN = {f.name.replace("_", "-") for f in fields(Settings)}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run folder, without the records of its rounds.

    Attributes
    ----------
    path
        The folder.
    settings
        Of the run; what an older version did not record has its default.
    versions, command
        Of the packages, by name; and the command line that made it.
    summary
        Content of `summary.json`; empty if the run did not end.
    varied
        The settings that tell it from the other runs of the report, by kebab-case key.
    paper
        The number that a paper reports for it.
    """

    path: Path
    settings: Settings
    versions: Mapping[str, str]
    command: str
    summary: Mapping[str, Any]
    varied: Mapping[str, Any] = field(default_factory=dict)
    paper: float | None = None

    @property
    def metric(self) -> Metric:
        """What its task reports."""
        return metric_of(self.summary)

    @property
    def label(self) -> str:
        """What tells it from other runs, but for the seed."""
        named = {key: value for key, value in self.varied.items() if key != "seed"}
        return label_of(named) or self.settings.strategy

    @property
    def ended(self) -> str:
        """A sentence if the run did not go through to its end, otherwise nothing."""
        if not self.summary:
            return "did not end: there is no summary.json"
        return "was interrupted by a signal" if self.summary.get("interrupted") else ""


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes
    ----------
    runs
        In order; those with the same `label` differ in the seed only.
    missing
        Sentences about runs that a comparison names and that are not there.
    command
        The command that made it; empty if several did.
    reach
        The value of the metric that the tables tell the cost of.
    is_comparison
        Whether runs are compared; otherwise there is one.
    """

    runs: Sequence[Run]
    missing: Sequence[str]
    command: str
    reach: float | None
    is_comparison: bool


def label_of(varied: Mapping[str, Any]) -> str:
    """Return a name made of settings: a strategy as it is, others with their keys."""
    shown = ((key, ",".join(value) if isinstance(value, list) else value) for key, value in varied.items())
    return " · ".join(
        str(v) if key in ("strategy", "folder") else f"{key} {v or 'default'}" for key, v in shown
    )


def read_run(path: Path) -> Run:
    """Read a run folder, but for the records of its rounds.

    Raises
    ------
    ValueError
        It is none, or its `config.toml` cannot be understood.
    """
    file = path / "config.toml"
    try:
        config = parse_toml(read_text(file, MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} is no run: it has no config.toml") from None
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file}: not TOML: {error}") from None
    values = {key: value for key, value in config.items() if key in KNOWN - set(RECORDED)}
    settings = Settings.from_mapping(values, str(file))
    summary = _read_json(path / "summary.json")
    if isinstance(summary, dict):
        _check_summary(path / "summary.json", summary)
    versions = config.get("versions", {})
    return Run(
        path,
        settings,
        versions if isinstance(versions, dict) else {},
        command_of(config),
        summary if isinstance(summary, dict) else {},
    )


def command_of(content: Mapping[str, Any]) -> str:
    """Return the command line that a file names, as one text; empty if it names none."""
    command = content.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def read_subject(folders: Sequence[Path]) -> Subject:
    """Read the runs of several folders, each of a run or of a comparison.

    Raises
    ------
    ValueError
        A folder is not there or holds no run, or the folders are of different tasks.
    """
    runs: list[Run] = []
    missing: list[str] = []
    commands: list[str] = []
    reach: float | None = None
    tasks: dict[Path, set[str]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        if (folder / CELLS).exists():
            own, lost, about = _read_comparison(folder)
            commands.append(command_of(about))
            own_reach = about.get("reach")
            reach, missing = own_reach if isinstance(own_reach, int | float) else reach, missing + lost
        else:
            own = [read_run(folder)]
            commands.append(own[0].command)
        if not own:
            raise ValueError(f"{folder}: no run of this comparison is finished")
        tasks[folder] = {run.settings.task for run in own}
        runs += own
    first = next(iter(tasks))
    for folder, own_tasks in tasks.items():
        if own_tasks != tasks[first]:
            both = f"{', '.join(sorted(tasks[first]))} ({first}), {', '.join(sorted(own_tasks))} ({folder})"
            raise ValueError(f"these runs do not fit together, their tasks differ: {both}")
    runs = [*{run.path.resolve(): run for run in runs}.values()]
    single = len(folders) == 1
    if not (single and runs[0].varied):
        runs = tell_apart(runs)
    return Subject(runs, missing, commands[0] if single else "", reach, len(runs) > 1 or bool(runs[0].varied))


def tell_apart(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the settings in which they differ; twins are told apart by their folders."""
    if len(runs) == 1:
        return [*runs]
    every = [run.settings.as_mapping() for run in runs]
    names = [
        key
        for key in every[0]
        if key not in UNIMPORTANT and len({json.dumps(values[key]) for values in every}) > 1
    ]
    told = [{key: values[key] for key in names} for values in every]
    if len({json.dumps(varied) for varied in told}) < len(runs):
        told = [varied | {"folder": run.path.name} for varied, run in zip(told, runs, strict=True)]
    return [replace(run, varied=varied) for run, varied in zip(runs, told, strict=True)]


def groups_of(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs by their labels: those of a group differ in the seed only."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _read_comparison(folder: Path) -> tuple[list[Run], list[str], Mapping[str, Any]]:
    """Return the finished runs of a comparison, sentences about the others, and what it says of itself."""
    index, about = _read_json(folder / CELLS), _read_json(folder / COMPARISON)
    if not isinstance(index, list) or not all(
        isinstance(entry, dict) and "folder" in entry for entry in index
    ):
        raise ValueError(f"{folder / CELLS} is no list of cells")
    runs, missing = [], []
    for entry in index:
        varied = {key: value for key, value in entry.items() if key not in ("folder", "paper")}
        name, paper = Path(str(entry["folder"])).name, entry.get("paper")
        path = folder.parent / "cells" / name  # the folders lie beside each other, wherever they were made
        if name in ("", "..") or not (paper is None or is_number(paper)):
            raise ValueError(f"{folder / CELLS}: {shown(entry)} is no cell")
        try:
            run = read_run(path)
        except ValueError:
            missing.append(f"{label_of(varied)}: not finished")
            continue
        runs.append(replace(run, varied=varied, paper=paper))
    return runs, missing, about if isinstance(about, dict) else {}


def _check_summary(file: Path, summary: Mapping[str, Any]) -> None:
    """Raise ValueError unless what a summary says of the result is what it can be."""
    final, metric = summary.get("final", {}), summary.get("metric")
    if not isinstance(final, dict) or not all(value is None or is_number(value) for value in final.values()):
        raise ValueError(f"{file}: final is {shown(final)}, not an object of numbers")
    if metric is None:
        return
    kinds = {"name": str, "higher_is_better": bool, "is_share": bool}
    if not isinstance(metric, dict) or {key: type(value) for key, value in metric.items()} != kinds:
        raise ValueError(f"{file}: metric is {shown(metric)}, not the name of a metric and what it is")


def _read_json(path: Path) -> Any:
    """Return the content of a file; None if it is not there or, with a warning, not JSON."""
    try:
        return parse_json(read_text(path, MOST_LINE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is no JSON: %s", path, error)
        return None
