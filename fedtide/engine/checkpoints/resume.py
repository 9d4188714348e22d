"""The settings of a resumed run: those of its folder, and which of them may change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.base.wording import plain
from fedtide.config import Settings
from fedtide.config.settings import EXECUTION_ONLY, read_toml
from fedtide.engine.run_files import read_config
from fedtide.engine.run_folder import versions

# Settings that only say when a run ends; `num-rounds` can only be raised, as schedules may depend on it.
ENDS = {"num-rounds", "until", "until-seconds", "stop-at", "patience"}
MAY_CHANGE = EXECUTION_ONLY | ENDS


class ResumeError(SettingsError):
    """A run cannot be resumed."""


def settings_of(values: Mapping[str, Any], source: str, trust: bool = False) -> Settings:
    """Return the settings of a run, given some of them by kebab-case key; with `resume`, of that run.

    Of a resumed run, those that affect the result must not change, except for those that end it.
    `source` is the origin of the values, for messages; `trust` says whether what only the folder names may
    be imported. ValueError: they are invalid, or there is no such run, or its settings were different.
    """
    dotted.trust(values)
    if not values.get("resume"):
        if trust:
            raise SettingsError("trust is for a run folder to resume; what you name yourself is trusted")
        return Settings.from_mapping(values, source)
    folder = str(values["resume"])
    config = Path(folder) / "config.toml"
    if not os.path.isfile(config):  # which no path can make raise
        raise SettingsError(f"resume {folder}: not a run folder: config.toml is missing")
    before = Settings.from_mapping(read_toml(str(config)), str(config))
    if trust:
        dotted.trust(before.as_mapping())
    dotted.distrust(before.as_mapping(), str(config))
    kept = {key: value for key, value in values.items() if value or key != "learning-rate"}  # 0: as it was
    given = Settings.from_mapping(before.as_mapping() | kept, source)
    check_kept(before.as_mapping(), given.as_mapping(), f"resume {folder}: ")
    if given.num_rounds < before.num_rounds:
        raise SettingsError(f"resume {folder}: num-rounds was {before.num_rounds} and can only be raised")
    if given.ray_address and given.engine != "inline" and not trust and "ray-address" not in values:
        where = f"resume {folder}: the run was on the cluster at {plain(given.ray_address)}"  # it sends code
        raise SettingsError(f"{where}; give ray-address again, take --engine inline, or add --trust")
    return given


def needs_trust(settings: Settings) -> bool:
    """Whether a run with these settings is only resumed from a folder that is trusted."""
    return bool(settings.ray_address or dotted.named(settings.as_mapping()))


def flags(path: Path, settings: Settings) -> str:
    """Return the flags of the command line that resume a run with these settings."""
    return f"--resume {path}{' --trust' if needs_trust(settings) else ''}"


def check_kept(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Raise SettingsError if settings, by kebab-case key, have changed that a resumed run keeps."""
    changed = [
        f"{key} was {before[key]!r}, not {now.get(key)!r}"
        for key in sorted(before.keys() - MAY_CHANGE)
        if before[key] != now.get(key)
    ]
    if changed:
        raise SettingsError(f"{where}{'; '.join(changed)}; a resumed run keeps its settings")


def what_changed(path: Path, parts: Mapping[str, str]) -> list[str]:
    """Return the packages and the files of custom components, `parts`, that have changed since the start."""
    config, now = read_config(path), versions()
    changed = [
        f"{name} was {was}, and is {now.get(name)}"
        for name, was in config.get("versions", {}).items()
        if now.get(name) != was
    ]
    return changed + [
        f"{name} has changed since the run started"
        for name, digest in config.get("parts", {}).items()
        if parts.get(name) != digest
    ]
