"""The folder that a run leaves behind."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from flexfl.config import Settings

PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "scikit-learn")


class RunFolder:
    """`config.toml`, `metrics.jsonl` (a line a round), `weights.npz` and `summary.json` of a run.

    Parameters
    ----------
    settings
        What the run was told; `run_dir` is where the folder is made.

    Attributes
    ----------
    path
        The new folder, `<run_dir>/<time>-<strategy>-<task>`.
    """

    def __init__(self, settings: Settings) -> None:
        self.path = _new_folder(settings)
        config = settings.as_mapping() | {
            "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
            "command": sys.argv,
        }
        (self.path / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")

    def write_round(self, record: dict[str, Any]) -> None:
        """Append the record of a round; it is on its way to the disk when this returns."""
        self._metrics.write(json.dumps(finite(record)) + "\n")
        self._metrics.flush()

    def write_weights(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Keep the final weights, one array a tensor."""
        with _replacing(self.path / "weights.npz") as temporary:
            np.savez(temporary, *arrays)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Keep the result and close the folder."""
        with _replacing(self.path / "summary.json") as temporary:
            temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        self._metrics.close()


def weights_sha256(arrays: Sequence[NDArray[Any]]) -> str:
    """Fingerprint of the weights, equal on machines of either byte order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def finite(value: Any) -> Any:
    """`value` with NaN and infinity replaced by None, which JSON knows."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _new_folder(settings: Settings) -> Path:
    strategy, task = settings.strategy.partition(":")[0], settings.task.partition(":")[0]
    base = Path(settings.run_dir) / f"{time.strftime('%Y%m%d-%H%M%S')}-{strategy}-{task}"
    for attempt in range(1, 1000):
        path = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(f"run-dir {settings.run_dir}: {error.strerror}") from None
        return path
    raise ValueError(f"run-dir {settings.run_dir}: too many runs in one second")


class _replacing:  # noqa: N801 - used like a function
    """A file that appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path, self.temporary = path, path.with_name(f".{path.name}")

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            os.replace(self.temporary, self.path)
