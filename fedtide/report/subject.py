"""The subject of a report: the runs in some folders, and the settings in which they differ."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.comparison.claims import Lacking
from fedtide.comparison.comparison import CELLS, COMPARISON, Comparison
from fedtide.comparison.methods import parse_baseline, without_seed
from fedtide.comparison.results import CellRun, parse_targets
from fedtide.config.grid import Cell
from fedtide.config.settings import NO_DIFFERENCE, shown
from fedtide.config.target import Target
from fedtide.engine.read_run import Run, read_run
from fedtide.engine.records import is_number
from fedtide.engine.run_files import command_of, read_json


def subject_of(run: Run) -> Comparison:
    """Make a single run the subject of a report."""
    return Comparison([CellRun(Cell(run.settings, {}), run)], run.path, command=command_of(run.config))


def read_subject(folders: Sequence[Path], trust: bool = False, baseline: str = "") -> Comparison:
    """Read the runs of several folders, each of a run or of a comparison.

    `trust` is as of `read_run` and `baseline` as of `parse_baseline`; by default, it is that of the
    comparison. ValueError: a folder does not exist or has no run, the folders have different tasks, or they
    have no such baseline.
    """
    parts = [_read(folder, trust) for folder in folders]
    tasks = [", ".join(sorted({cell.settings.task for cell, _ in part.runs})) for part in parts]
    if len({*tasks}) > 1:
        named = ", ".join(f"{task} ({folder})" for task, folder in zip(tasks, folders, strict=True))
        raise SettingsError(f"these runs have different tasks and cannot be compared: {named}")
    runs = [*{found.run.path.resolve(): found for part in parts for found in part.runs}.values()]
    if len(parts) > 1 or not runs[0].cell.varied:
        runs = _with_differences(runs)
    lacking = [run for part in parts for run in part.lacking]
    names = {str(value) for cell, _ in runs for value in cell.settings.as_mapping().values()}
    if alike := [name for name, times in Counter(map(dotted.shown, names)).items() if times > 1]:
        raise SettingsError(f"these runs have several versions of {', '.join(alike)}: report one at a time")
    every = [*(cell.others for cell, _ in runs), *(without_seed(run.varied) for run in lacking)]
    kept = parts[0].baseline if len(parts) == 1 else None
    return Comparison(
        runs,
        folders[0],
        parse_baseline(baseline, every) if baseline else kept,
        next((part.reach for part in reversed(parts) if part.reach), ()),
        lacking,
        command=parts[0].command if len(parts) == 1 else "",
    )


def _read(folder: Path, trust: bool) -> Comparison:
    if not os.path.isdir(folder):
        raise SettingsError(f"folder {folder} does not exist")
    part = _comparison(folder, trust) if (folder / CELLS).exists() else subject_of(read_run(folder, trust))
    if not part.runs:
        raise SettingsError(f"{folder}: no run of this comparison is finished")
    return part


def _with_differences(runs: Sequence[CellRun]) -> list[CellRun]:
    """Add the settings in which the runs differ, and their folders if these do not tell them apart."""
    if len(runs) == 1:
        return [*runs]
    every = [cell.settings.as_mapping() for cell, _ in runs]
    names = [
        key
        for key in every[0]
        if key not in NO_DIFFERENCE and len({json.dumps(values[key]) for values in every}) > 1
    ]
    varied = [{key: values[key] for key in names} for values in every]
    if len({json.dumps(own) for own in varied}) < len(runs):
        varied = [own | {"folder": run.path.name} for own, (_, run) in zip(varied, runs, strict=True)]
    return [CellRun(replace(cell, varied=own), run) for (cell, run), own in zip(runs, varied, strict=True)]


def _targets(kept: Any) -> list[Target]:
    """Return the targets that a comparison has kept, of earlier versions a number; [] if they are none."""
    texts = kept if isinstance(kept, list) else [] if kept is None else [kept]
    try:
        return parse_targets(texts)
    except ValueError:
        return []


def _comparison(folder: Path, trust: bool) -> Comparison:
    index, about = read_json(folder / CELLS), read_json(folder / COMPARISON)
    if not isinstance(index, list) or not all(isinstance(entry, dict) for entry in index):
        raise SettingsError(f"{folder / CELLS} is not a list of cells")
    about = about if isinstance(about, dict) else {}
    runs, lacking = [], []
    failed = about.get("failed")
    for entry in index:
        varied = {key: value for key, value in entry.items() if key not in ("folder", "paper", "tuned")}
        name, paper = Path(str(entry.get("folder"))).name, entry.get("paper")
        path = folder.parent / "cells" / name  # both folders lie side by side, also after being moved
        is_cell = (paper is None or is_number(paper)) and isinstance(entry.get("tuned", {}), dict)
        if name in ("", "..") or not is_cell:
            raise SettingsError(f"{folder / CELLS}: {shown(entry)} is not a cell")
        try:
            run = read_run(path, trust)
            runs.append(CellRun(Cell(run.settings, varied, paper, entry.get("tuned", {})), run))
        except ValueError:  # also: settings of an unknown version
            lacking.append(Lacking(varied, isinstance(failed, dict) and name in failed))
    baseline = about.get("baseline")  # earlier versions kept none
    known = isinstance(baseline, dict) and any(baseline.items() <= entry.items() for entry in index)
    kept = baseline if known else None
    return Comparison(runs, folder, kept, _targets(about.get("reach")), lacking, command=command_of(about))
