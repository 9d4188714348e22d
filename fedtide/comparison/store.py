"""The runs of comparisons on disk: a comparison can be continued, and trains no cell twice."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import replacing
from fedtide.config import Settings
from fedtide.config.settings import EXECUTION_ONLY
from fedtide.engine.read_run import Run, read_run
from fedtide.engine.run_files import read_config, records_in
from fedtide.engine.run_folder import lock, slug
from fedtide.plan import Plan


class Place(NamedTuple):
    """Where a cell runs, and what a process elsewhere needs to know of the machine."""

    machine: str  # its name
    working_folder: str  # where relative paths start
    unfinished: str  # folder of the run until it is finished, from which it can be resumed


class Unfinished(str):
    """Why a run is not finished that is no fault of its method, as a full disk is none."""


class CellStore:
    """The run folders of all cells, `<run_dir>/cells/<name>`, by their settings."""

    def __init__(self, run_dir: str) -> None:
        self.folder = Path(run_dir) / "cells"

    def path(self, settings: Settings) -> Path:
        """Return the folder of a cell; its name follows from all settings that matter."""
        names = (settings.strategy, settings.task, settings.trace)
        return self.folder / f"{slug(names, 80)}-seed{settings.seed}-{identity(settings)}"

    def place(self, settings: Settings) -> Place:
        """Return the place of a cell, cleared of an unfinished run with other settings or parts.

        SettingsError: the folder of the cells cannot be made.
        """
        with writing_in(self.folder.parent):
            self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._unfinished(settings)
        try:
            keep = _is_of(settings, read_config(unfinished))
        except (OSError, ValueError, KeyError):
            keep = False
        if not keep:
            self.discard(settings)
        return Place(platform.node(), os.getcwd(), str(unfinished))

    def load(self, settings: Settings) -> Run | None:
        """Return a finished cell with its records; None if there is none, or only a part of one."""
        path = self.path(settings)
        try:
            run = read_run(path)
            if run.status != "finished" or not _is_of(settings, run.config):
                return None
            run = replace(run, records=[*records_in(path)])
            return run if run.is_whole else None
        except (OSError, ValueError):
            return None

    def keep(self, settings: Settings, ended: Mapping[str, bytes] | str) -> Run | str:
        """Store the files of a finished cell, and read it; or return why that is not possible."""
        if isinstance(ended, str):
            return ended
        try:
            self.save(settings, ended)
        except OSError as error:
            return Unfinished(f"cannot be stored: {why(error)}")
        changed = Unfinished(
            "its files cannot be read, or a file that its settings name has changed meanwhile"
        )
        return self.load(settings) or changed

    def save(self, settings: Settings, files: Mapping[str, bytes]) -> None:
        """Store the files of a finished cell, all of them or none; OSError: they cannot be written."""
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
        """Remove the folder of an unfinished cell, unless a process runs in it."""
        unfinished = self._unfinished(settings)
        try:
            with (unfinished / "metrics.jsonl").open("rb") as file:
                lock(file, unfinished)
        except OSError:  # there is none
            pass
        except SettingsError:
            return
        shutil.rmtree(unfinished, ignore_errors=True)

    def _unfinished(self, settings: Settings) -> Path:
        path = self.path(settings).absolute()
        return path.with_name(f".{path.name}")


@contextmanager
def writing_in(run_dir: Path | str) -> Iterator[None]:
    """Raise SettingsError where the folder of all runs cannot be written to."""
    try:
        yield
    except OSError as error:
        raise SettingsError(f"run-dir {run_dir}: {why(error)}") from None


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, by name, to the folder of a comparison; SettingsError: that is impossible."""
    with writing_in(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")


def identity(settings: Settings, without: tuple[str, ...] = ()) -> str:
    """Return ten hexadecimal digits that stand for the settings that matter, but for some of them.

    Only those count that differ from their defaults: a further setting changes no name.
    """
    defaults, values = Settings().as_mapping(), settings.as_mapping()
    left_out = EXECUTION_ONLY | set(without)
    relevant = {k: value for k, value in values.items() if k not in left_out and value != defaults[k]}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:10]


def _is_of(settings: Settings, config: Mapping[str, Any]) -> bool:
    """Whether a run with this configuration had these settings and the user's own parts.

    A default may have changed since, and so may the parts.
    """
    chosen = {"cohort"} if settings.cohort == "auto" else set()  # the run then records its choice
    relevant, plan = settings.as_mapping().keys() - EXECUTION_ONLY - chosen, Plan.of(settings)
    return config.get("parts", {}) == plan.sources and all(
        config[key] == value
        for key, value in plan.settings.as_mapping().items()
        if key in relevant & config.keys()
    )
