"""What a report is about: the runs in some folders, and the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flexfl.config import Settings
from flexfl.config.grid import Cell
from flexfl.config.settings import EXECUTION_ONLY, shown
from flexfl.engine.read_run import Run, command_of, is_number, read_json, read_run
from flexfl.tasks import Metric

COMPARISON = "comparison.json"  # what a comparison folder has besides its tables
CELLS = "cells.json"
UNIMPORTANT = EXECUTION_ONLY | {"cohort"}  # settings that do not make two runs different


@dataclass(frozen=True)
class Compared:
    """A run of a report, without its records."""

    run: Run
    varied: Mapping[str, Any] = field(default_factory=dict)
    """The settings in which it differs from the report's other runs, by kebab-case key."""
    paper: float | None = None  # the result that a paper reports for it

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.run.settings

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.run.path

    @property
    def label(self) -> str:
        """What distinguishes it from other runs, apart from the seed."""
        return label_of({key: v for key, v in self.varied.items() if key != "seed"}) or self.settings.strategy

    @property
    def cell(self) -> Cell:
        """As a cell of a comparison; two runs with the same settings are two cells."""
        settings = replace(self.settings, run_dir=str(self.path))
        return Cell(settings, self.varied or {"strategy": settings.strategy}, self.paper)


@dataclass(frozen=True)
class Subject:
    """What a report is about: a run, or several that are compared."""

    runs: Sequence[Compared]
    missing: Sequence[str]  # sentences about runs that a comparison lists but that do not exist
    command: str  # that made it; empty if there are several
    reach: float | None  # the value of the metric to which the tables show the cost
    is_comparison: bool

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.runs[0].run.metric

    @property
    def groups(self) -> dict[str, list[Compared]]:
        """The runs by their labels; those of a group differ only in the seed."""
        groups: dict[str, list[Compared]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        return groups


def label_of(varied: Mapping[str, Any]) -> str:
    """Return a label made of settings: just the value of the strategy, others with their keys."""
    values = {key: ",".join(v) if isinstance(v, list) else v for key, v in varied.items()}
    return " · ".join(
        str(v) if key in ("strategy", "folder") else f"{key} {v or 'default'}" for key, v in values.items()
    )


def read_subject(folders: Sequence[Path]) -> Subject:
    """Read the runs of several folders, each of a run or of a comparison.

    ValueError: a folder does not exist or has no run, or the folders have different tasks.
    """
    runs: list[Compared] = []
    missing: list[str] = []
    commands: list[str] = []
    reach: float | None = None
    tasks: dict[Path, str] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"folder {folder} does not exist")
        if (folder / CELLS).exists():
            own, lost, about = _read_comparison(folder)
            commands.append(command_of(about))
            missing += lost
            reach = about["reach"] if is_number(about.get("reach")) else reach
        else:
            own = [Compared(read_run(folder))]
            commands.append(own[0].run.command)
        if not own:
            raise ValueError(f"{folder}: no run of this comparison is finished")
        tasks[folder] = ", ".join(sorted({run.settings.task for run in own}))
        runs += own
    if len({*tasks.values()}) > 1:
        named = ", ".join(f"{task} ({folder})" for folder, task in tasks.items())
        raise ValueError(f"these runs have different tasks and cannot be compared: {named}")
    runs = [*{run.path.resolve(): run for run in runs}.values()]
    single = len(folders) == 1
    if not (single and runs[0].varied):
        runs = _with_differences(runs)
    return Subject(runs, missing, commands[0] if single else "", reach, len(runs) > 1 or bool(runs[0].varied))


def _with_differences(runs: Sequence[Compared]) -> list[Compared]:
    """Return the runs with the settings in which they differ, or their folders if these do not suffice."""
    if len(runs) == 1:
        return [*runs]
    every = [run.settings.as_mapping() for run in runs]
    names = [
        key
        for key in every[0]
        if key not in UNIMPORTANT and len({json.dumps(values[key]) for values in every}) > 1
    ]
    varied = [{key: values[key] for key in names} for values in every]
    if len({json.dumps(own) for own in varied}) < len(runs):
        varied = [own | {"folder": run.path.name} for own, run in zip(varied, runs, strict=True)]
    return [replace(run, varied=own) for run, own in zip(runs, varied, strict=True)]


def _read_comparison(folder: Path) -> tuple[list[Compared], list[str], Mapping[str, Any]]:
    """Return the finished runs of a comparison, sentences about the others, and `comparison.json`."""
    index, about = read_json(folder / CELLS), read_json(folder / COMPARISON)
    if not isinstance(index, list) or not all(isinstance(entry, dict) for entry in index):
        raise ValueError(f"{folder / CELLS} is not a list of cells")
    runs, missing = [], []
    for entry in index:
        varied = {key: value for key, value in entry.items() if key not in ("folder", "paper")}
        name, paper = Path(str(entry.get("folder"))).name, entry.get("paper")
        path = folder.parent / "cells" / name  # both folders lie side by side, also after being moved
        if name in ("", "..") or not (paper is None or is_number(paper)):
            raise ValueError(f"{folder / CELLS}: {shown(entry)} is not a cell")
        try:
            run = read_run(path)
            run.settings  # noqa: B018 - those of an unknown version cannot be read
        except ValueError:
            missing.append(f"{label_of(varied)}: not finished")
        else:
            runs.append(Compared(run, varied, paper))
    return runs, missing, about if isinstance(about, dict) else {}
