"""The command that starts on real devices what has been simulated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtide.config import Settings

# Settings without effect under `flwr run`, and those that simulate who takes part.
LEFT_OUT = {"engine", "num-workers", "client-gpus", "ray-address", "client-timeout", "cohort-size", "resume"}
LEFT_OUT |= {"trace", "arrivals", "departures"}
SUPERLINK = "lab"  # in docs/deploy.md; without a name, Flower simulates
PATHS = {"data-dir", "run-dir"}


def deployed_values(settings: Settings, **changes: Any) -> dict[str, Any]:
    """Return the settings for `flwr run` on devices that differ from their defaults, by kebab-case key.

    No trace is among them, as one that is named is replayed: members are the devices that connect. Paths are
    given in full, as Flower starts its processes in another folder. `changes` are settings that only devices
    need, by field.
    """
    defaults, values = Settings().as_mapping(), replace(settings, **changes).as_mapping()
    chosen = {key: value for key, value in values.items() if value != defaults[key] and key not in LEFT_OUT}
    for key in PATHS & chosen.keys():
        chosen[key] = str(Path(chosen[key]).resolve())
    if "option" in chosen:  # the run configuration has no lists
        chosen["option"] = ",".join(chosen["option"])
    return chosen


def flower_command(values: Mapping[str, Any]) -> str:
    """Return the command line that starts a run with these settings."""
    shown = " ".join(f"{key}={_quoted(value)}" for key, value in values.items())
    return f"flwr run . {SUPERLINK} --stream --run-config {shlex.quote(shown)}"


def _quoted(value: Any) -> str:
    """Return a value in TOML; Flower finds the end of a text by its quotes and knows no escapes."""
    if isinstance(value, str) and ('"' in value or "\\" in value):
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
