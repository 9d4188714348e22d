"""The settings of a run that goes on: those of its folder, and what may be another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexfl.config import Settings
from flexfl.config.settings import IRRELEVANT, read_toml
from flexfl.engine.named import own_sources
from flexfl.engine.run_folder import read_config, versions


def resumed_settings(values: Mapping[str, Any], source: str) -> Settings:
    """Return the settings of the run in the folder `resume`, with those given.

    Parameters
    ----------
    values
        Settings by kebab-case key, `resume` among them. Others have to be as they were, unless the result
        does not depend on them; `num-rounds` may also be larger.
    source
        Where the values come from, for messages.

    Raises
    ------
    ValueError
        There is no such run, or it had other settings.
    """
    folder = str(values["resume"])
    config = Path(folder) / "config.toml"
    if not config.is_file():
        raise ValueError(f"resume {folder}: there is no run in this folder: config.toml is missing")
    before = Settings.from_mapping(read_toml(str(config)), str(config))
    given = Settings.from_mapping(before.as_mapping() | dict(values), source)
    was, wanted = before.as_mapping(), given.as_mapping()
    changed = [
        f"{key} was {was[key]!r}, not {wanted[key]!r}"
        for key in was.keys() - IRRELEVANT - {"num-rounds"}
        if was[key] != wanted[key]
    ]
    if changed:
        raise ValueError(f"resume {folder}: {'; '.join(sorted(changed))}; leave out what is not to change")
    if given.num_rounds < before.num_rounds:
        raise ValueError(f"resume {folder}: num-rounds was {before.num_rounds}, and can only become larger")
    return given


def what_changed(path: Path, settings: Settings) -> list[str]:
    """Return what makes the numbers of a resumed run others: packages, and files of one's own parts.

    Raises
    ------
    OSError, ValueError
        `config.toml` cannot be read.
    """
    config, now = read_config(path), versions()
    changed = [
        f"{name} was {was}, and is {now.get(name)}"
        for name, was in config.get("versions", {}).items()
        if now.get(name) != was
    ]
    parts = own_sources(settings)
    return changed + [
        f"{name} has been changed since"
        for name, digest in config.get("parts", {}).items()
        if parts.get(name) != digest
    ]
