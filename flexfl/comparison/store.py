"""Finished cells on disk: a comparison goes on where it stopped, and trains no cell twice."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flexfl.config import Settings
from flexfl.config.settings import EXECUTION_ONLY, MAX_BYTES
from flexfl.engine.parts import own_sources
from flexfl.engine.run_folder import program_version, read_config, records_in, slug
from flexfl.ground.files import parse_json, read_text
from flexfl.tasks import ACCURACY, Metric


class Place(NamedTuple):
    """Where a cell runs, and what a process elsewhere needs to know of the machine.

    Attributes
    ----------
    machine
        Name of the machine.
    working_folder
        Where relative paths start.
    unfinished
        Folder of the run until it is finished, from which it goes on.
    """

    machine: str
    working_folder: str
    unfinished: str


@dataclass(frozen=True)
class FinishedCell:
    """A finished run.

    Attributes
    ----------
    summary
        Content of its `summary.json`.
    records
        Of all rounds, starting with round 0.
    version
        The version of flexfl that made it.
    """

    summary: dict[str, Any]
    records: list[dict[str, Any]]
    version: str

    @property
    def metric(self) -> Metric:
        """What its task reports."""
        return metric_of(self.summary)

    @property
    def final(self) -> float:
        """The value of the metric in the end; NaN if there is none."""
        value = self.summary["final"][self.metric.key]
        return math.nan if value is None else float(value)


class CellStore:
    """The run folders of all cells, `<run_dir>/cells/<name>`, by their settings.

    Parameters
    ----------
    run_dir
        Where the folder `cells` lies.
    """

    def __init__(self, run_dir: str) -> None:
        self.folder = Path(run_dir) / "cells"

    def path(self, settings: Settings) -> Path:
        """Return the folder of a cell; its name follows from all settings that matter."""
        names = (settings.strategy, settings.task, settings.trace)
        return self.folder / f"{slug(names, 80)}-seed{settings.seed}-{identity(settings)}"

    def place(self, settings: Settings) -> Place:
        """Return where a cell runs; what an earlier version of it left unfinished there is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(settings).absolute()
        unfinished = path.with_name(f".{path.name}")
        try:
            config = read_config(unfinished)
            keep = _is_of(settings, config)
        except (OSError, ValueError, KeyError):
            keep = False
        if not keep:
            shutil.rmtree(unfinished, ignore_errors=True)
        return Place(platform.node(), os.getcwd(), str(unfinished))

    def load(self, settings: Settings) -> FinishedCell | None:
        """Return a finished cell; None if there is none, or only a part of one."""
        path = self.path(settings)
        try:
            summary = parse_json(read_text(path / "summary.json", MAX_BYTES))
            records = [*records_in(path)]
            config = read_config(path)
            if summary.get("interrupted") or "failed" in summary or not _is_of(settings, config):
                return None
            return FinishedCell(summary, records, config["versions"].get("flexfl", "unknown"))
        except (OSError, ValueError, KeyError, AttributeError):
            return None

    def save(self, settings: Settings, files: Mapping[str, bytes]) -> None:
        """Store the files of a finished cell, all of them or none.

        Raises
        ------
        OSError
            They cannot be written.
        """
        path = self.path(settings)
        partial = path.with_name(f".{path.name}.finished")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        summary = json.loads(files["summary.json"]) | {"run_dir": str(path)}  # it was made elsewhere
        (partial / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        self.discard(settings)

    def discard(self, settings: Settings) -> None:
        """Remove what is unfinished of a cell, if anything is there."""
        path = self.path(settings)
        shutil.rmtree(path.with_name(f".{path.name}"), ignore_errors=True)


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """Return what the task of a run reports, given its summary; older ones do not say."""
    told = summary.get("metric")
    return Metric(**told) if isinstance(told, dict) else ACCURACY


def identity(settings: Settings, without: tuple[str, ...] = ()) -> str:
    """Return ten hexadecimal digits that stand for the settings that matter, but for some of them.

    Only those count that differ from their defaults: a further setting changes no name.
    """
    defaults, values = Settings().as_mapping(), settings.as_mapping()
    left_out = EXECUTION_ONLY | set(without)
    relevant = {k: value for k, value in values.items() if k not in left_out and value != defaults[k]}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:10]


def _is_of(settings: Settings, config: Mapping[str, Any]) -> bool:
    """Whether a run with this configuration had these settings, and the parts that the user has written.

    A default may have changed since, and so may the parts.
    """
    chosen = {"cohort"} if settings.cohort == "auto" else set()  # the run then records its choice
    relevant = settings.as_mapping().keys() - EXECUTION_ONLY - chosen
    return config.get("parts", {}) == own_sources(settings) and all(
        config[key] == value
        for key, value in settings.as_mapping().items()
        if key in relevant & config.keys()
    )


def outdated(cells: Mapping[Settings, FinishedCell]) -> dict[str, int]:
    """Return how many cells other versions of flexfl made, by version."""
    found: dict[str, int] = {}
    for cell in cells.values():
        if cell.version != program_version():
            found[cell.version] = found.get(cell.version, 0) + 1
    return found
