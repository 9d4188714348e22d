"""The folder with the results of a run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedtide.base import dotted
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import replacing
from fedtide.base.preprocessing import PREPROCESSING, Preprocessing
from fedtide.base.tables import csv_text
from fedtide.config import Settings
from fedtide.engine.observers import Observer, Record
from fedtide.engine.run_files import NAMES, read_config, weights_file
from fedtide.plan import Plan

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)
PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "scikit-learn", "numba")
TAKEN = "another process runs in this folder; wait until it has ended"


class FolderLost(Exception):  # noqa: N818 - what has happened, not what is wrong with the program
    """The run folder is not there any more."""


class RunFolder(Observer):
    """`config.toml`, `metrics.jsonl` (one line per round), `weights.npz` and `summary.json` of a run.

    Beside them lie `clients.csv` if the clients have names, and `preprocessing.json` if their data were a
    table or images. The folder is that of `resume` in the settings, else `path`, which must not exist yet,
    else a new one in `run_dir`.
    `flower_run` is Flower's number of the run, as an attribute that of the run that was resumed. ValueError:
    the folder cannot be made, or another process writes to it.
    """

    def __init__(self, plan: Plan, path: Path | None = None, flower_run: str = "") -> None:
        settings, self.parts = plan.settings, dict(plan.sources)
        self.resumed = bool(settings.resume)
        self._config = settings.as_mapping() | {"resume": ""}
        if self.resumed:
            self.path = Path(settings.resume).absolute()
            self._config = read_config(self.path) | self._config
        else:
            command = sys.argv[:1] if flower_run else sys.argv  # Flower's arguments have a secret of the run
            self._config |= {"versions": versions(), "command": command, "resolved": plan.resolved}
            if self.parts:
                self._config["parts"] = self.parts
            if flower_run:
                self._config["flower-run"] = flower_run
            self.path = (_new_folder(settings) if path is None else _made(path)).absolute()
        self.flower_run = str(self._config.get("flower-run", ""))
        self._metrics = self._open_metrics()
        self._length = self._checksum = 0  # of what this run has written to it
        self._unwritten, self._warned = b"", False
        self.warn: Callable[[str], object] = log.warning  # takes a line
        try:
            lock(self._metrics, self.path)
            if not self.resumed:  # else see `go_on`
                self._write_config()
        except OSError as error:
            self.discard()
            raise SettingsError(f"run-dir {self.path}: {why(error)}") from None

    def discard(self) -> None:
        """Remove the folder of a run that has not begun, unless it is that of a resumed run."""
        self._metrics.close()
        if not self.resumed:
            shutil.rmtree(self.path)

    def write_names(self, names: Sequence[str]) -> None:
        """Save the names of the clients, if they have some."""
        if names:
            self._write_text(NAMES, csv_text([("client", "name"), *enumerate(names)]))

    def write_preprocessing(self, done: Preprocessing) -> None:
        """Save what was done to a table or to images, so that others can prepare examples alike."""
        if done.features or done.pixels:
            self._write_text(PREPROCESSING, done.to_json() + "\n")

    def _write_text(self, name: str, text: str) -> None:
        try:
            (self.path / name).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise SettingsError(f"run-dir {self.path}: {name}: {why(error)}") from None

    def written(self) -> list[int]:
        """Return the length and the checksum of `metrics.jsonl`, all on the disk; OSError if it cannot be."""
        self._write()
        os.fsync(self._metrics.fileno())
        return [self._length, self._checksum]

    def check(self, written: Sequence[int]) -> None:
        """Raise SettingsError unless `metrics.jsonl` begins with what had been `written`."""
        (left, expected), checksum = written, 0
        with (self.path / "metrics.jsonl").open("rb") as file:
            while part := file.read(min(left, 1 << 20)):
                left, checksum = left - len(part), crc32(part, checksum)
        if left or checksum != expected:
            what = "is shorter than it was" if left else "was changed"
            raise SettingsError(f"metrics.jsonl {what} in its first {written[0]} bytes")

    def go_on(self, written: Sequence[int] = (0, 0)) -> None:
        """Begin to write to a resumed run's folder: remove the records after these, and what its end left."""
        self._length, self._checksum = written
        self._metrics.truncate(self._length)
        for name in ("summary.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        self._write_config()

    def round(self, record: Record) -> None:
        """Append the record of a round; FolderLost if the folder has been removed.

        On a full disk it warns once, and the next call tries again, so no record is lost.
        """
        if not os.fstat(self._metrics.fileno()).st_nlink:
            raise FolderLost(f"{self.path}: the run folder has been removed")
        self._unwritten += (_json(record) + "\n").encode()
        try:
            self._write()
        except OSError as error:
            if not self._warned:
                effect = "the run continues and retries each round"
                self.warn(f"warning: metrics.jsonl: {why(error)}; {effect}")
            self._warned = True

    def try_to_write_weights(self, arrays: Sequence[NDArray[Any]], after: int | None = None) -> str:
        """Save the weights after a round, by default the final ones, one array per tensor.

        Return what went wrong, empty if nothing did.
        """
        file = weights_file(self.path, after)
        try:
            with replacing(file) as temporary, temporary.open("wb") as stream:
                np.savez(stream, *arrays)
        except OSError as error:
            return f"{file}: {why(error)}"
        return ""

    def try_to_write_model(self, state: Mapping[str, Any]) -> str:
        """Save the final model's `state_dict`, frozen weights included; return what went wrong."""
        from safetensors.torch import save

        try:
            with replacing(self.path / "model.safetensors") as temporary:
                temporary.write_bytes(
                    save({name: tensor.contiguous().clone() for name, tensor in state.items()})
                )
        except OSError as error:
            return f"{self.path / 'model.safetensors'}: {why(error)}"
        return ""

    def finish(self, summary: dict[str, Any]) -> None:
        """Save the summary, and records that could not be written before."""
        self._write()
        with replacing(self.path / "summary.json") as temporary:
            temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

    def close(self) -> None:
        self._metrics.close()

    def _open_metrics(self) -> FileIO:
        """Open `metrics.jsonl` to append to it; a resumed run has one."""
        file, setting = self.path / "metrics.jsonl", "resume" if self.resumed else "run-dir"
        kept = ~os.O_CREAT if self.resumed else ~0
        try:
            return open(
                file, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags & kept, 0o666)
            )
        except OSError as error:
            raise SettingsError(f"{setting} {self.path}: metrics.jsonl: {why(error)}") from None

    def _write_config(self) -> None:
        with replacing(self.path / "config.toml") as temporary:
            temporary.write_text(tomli_w.dumps(self._config), encoding="utf-8")

    def _write(self) -> None:
        while self._unwritten:
            count = self._metrics.write(self._unwritten)
            self._checksum = crc32(self._unwritten[:count], self._checksum)
            self._length, self._unwritten = self._length + count, self._unwritten[count:]


@dataclass
class KeptWeights(Observer):
    """Keeps the weights after every so many rounds in the run folder; a full disk is a warning."""

    folder: RunFolder
    every: int  # 0: never
    weights: Callable[[], list[NDArray[Any]]]

    def round(self, record: Record) -> None:
        number = record["round"]
        is_kept = self.every and number % self.every == 0
        if is_kept and (failure := self.folder.try_to_write_weights(self.weights(), number)):
            self.folder.warn(f"warning: {failure}; the run continues")


def program_version() -> str:
    """Return the version of this program, as its pyproject.toml or the installed package has it."""
    project = Path(__file__).parents[2] / "pyproject.toml"  # not there where fedtide is installed
    try:
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    except OSError:
        return version("fedtide")


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of what a result may depend on, the processor included."""
    found = {"python": platform.python_version(), "fedtide": program_version(), "commit": _commit()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {name: text for name, text in (found | {"processor": _processor()}).items() if text}


def _commit() -> str:
    """Return the commit of the checkout that the program runs in, with `-dirty` if files have changed."""
    project = Path(__file__).parents[2]
    if not (project / ".git").exists() or (git := shutil.which("git")) is None:
        return ""
    command = [git, "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.machine())


def weights_sha256(arrays: Sequence[NDArray[Any]]) -> str:
    """SHA-256 of the weights in little-endian order, so that it is the same on all machines."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def frozen_sha256(model: nn.Module) -> str:
    """SHA-256 of the frozen weights of a model."""
    from clients.gradients.flat import frozen_weights

    return weights_sha256([weight.detach().cpu().numpy() for weight in frozen_weights(model)])


def slug(parts: Iterable[str], length: int) -> str:
    """Return a part of a file name, of at most this length, that shows these texts."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", dotted.shown("-".join(parts)))[:length].strip("-.")


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _json(record: Record) -> str:
    """Return a record as JSON, NaN and infinity as null; most have neither."""
    try:
        return json.dumps(record, allow_nan=False)
    except ValueError:
        return json.dumps(finite(record))


def _made(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise SettingsError(f"{path}: {TAKEN}") from None
    return path


def _new_folder(settings: Settings) -> Path:
    named = ((settings.strategy, 30), (settings.task, 20), (settings.trace, 40))
    parts = [slug([spec], length) for spec, length in named]
    name = "-".join([time.strftime("%Y%m%d-%H%M%S"), *parts, f"seed={settings.seed}"])
    base = Path(settings.run_dir) / name
    path, attempt = base, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            attempt += 1
            path = base.with_name(f"{base.name}-{attempt}")
        except (OSError, RecursionError) as error:  # the latter from a thousand folders in each other
            reason = getattr(error, "strerror", None) or "too many folders in each other"
            raise SettingsError(f"run-dir {settings.run_dir[:200]}: {reason}") from None


def lock(file: IO[Any] | int, path: Path) -> None:
    """Lock an open file or folder until it is closed; SettingsError if another process has the lock."""
    try:
        import fcntl
    except ImportError:  # on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(f"{path}: {TAKEN}") from None
