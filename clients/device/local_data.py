"""A device's own examples, read from its files: an .npz file, a CSV file, or a folder of classes.

- `.npz`: `x`, inputs of shape (n, ...), and `y`, class numbers or numbers to predict, of shape (n,), as the
  run's task has them. It may be compressed.
- `.csv`: the first line names the columns. Where the run's task is a table or has texts, they are encoded
  as there. Otherwise one is the target (`target`, else the last), and the others are numbers, used as they
  are.
- a folder: a subfolder for each class, with images, or .npz files that have `x`.

A class must have the same number on every device. Classes are numbers from 0 on; or names, which `classes`
lists in their order (`cat+dog`). Without it, subfolders with names are numbered in the order of their names,
and there must be one for each output of the model, empty where a device has no such example.

Images become shape (1, H, W) if they are grey, else (3, H, W), from 0 to 1, and are standardised as those of
the run's task. Nothing is unpickled, and memory is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.device.own_table import class_number, read_own_table
from fedtide.base.errors import why
from fedtide.base.files import read_arrays, replacing
from fedtide.base.images import IMAGES, opened, pixels_of
from fedtide.base.preprocessing import CLASSIFICATION, REGRESSION, Preprocessing
from fedtide.base.tables import read_table

MAX_BYTES = 1 << 30  # of the inputs, and of an .npz file
_NUM_CLASSES, _VERSION = "num_classes", "version"  # in a fast copy


class DataSpec(NamedTuple):
    """Where a device's examples are; see the beginning of this file."""

    path: str
    target: str = ""  # the column of a CSV file to predict; empty: that of the run's table, or the last
    classes: str = ""  # their names, with `+` between them; empty: their numbers
    fast_copy: str = ""  # an .npz file in which they are kept once they have been read; empty: there is none


class LocalData(NamedTuple):
    """A device's examples: inputs of shape (n, *input_shape), targets, and where they were read.

    Inputs are float32, or int64 from 0 to `vocabulary` - 1. Targets are class numbers, or float32 numbers
    whose `unit` is that of `Preprocessing`.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    num_classes: int | None = None  # None: not known
    source: str = "the data"
    unit: float | None = None  # None: classes
    vocabulary: int = 0  # 0: inputs are no tokens

    def check(self, input_size: int, num_outputs: int) -> None:
        """Raise ValueError unless a model of so many inputs and outputs can be trained on the examples."""
        size = int(np.prod(self.x.shape[1:]))
        if size != input_size:
            raise ValueError(
                f"{self.source}: an example has shape {self.x.shape[1:]}, {size} numbers, and the model of "
                f"the run takes {input_size}; set another task or model, or prepare the data for this one"
            )
        if self.unit is not None:
            if num_outputs != 1:
                raise ValueError(
                    f"{self.source}: one number to predict where the model of the run has {num_outputs} "
                    "outputs"
                )
            return
        if num_outputs < 2:
            raise ValueError(f"{self.source}: classes where the model of the run predicts one number")
        if self.num_classes not in (None, num_outputs):
            raise ValueError(
                f"{self.source}: {self.num_classes} classes where the model of the run has {num_outputs} "
                "outputs; name all of them (classes), in the same order on all devices"
            )
        if len(self.y) and self.y.max() >= num_outputs:
            raise ValueError(
                f"{self.source}: class {self.y.max()} where the model of the run has {num_outputs} outputs, "
                f"0..{num_outputs - 1}"
            )

    def hold_out(self, share: float, rng: np.random.Generator) -> tuple[LocalData, LocalData]:
        """Return the examples to train on, and the share held out: at least one of each, of two or more."""
        n = len(self.y)
        count = min(max(int(share * n + 1e-9), 1), n - 1) if share and n > 1 else 0
        order = rng.permutation(n) if count else np.arange(n)
        kept, held = np.sort(order[count:]), np.sort(order[:count])
        return self._replace(x=self.x[kept], y=self.y[kept]), self._replace(x=self.x[held], y=self.y[held])


def count_rows(path: str) -> int:
    """Return how many rows a CSV file has, whose values only a run's task can judge; ValueError as `read`."""
    with _naming(path):
        if not (count := sum(1 for _ in read_table(path).rows)):
            raise ValueError("there are no rows below the header")
        return count


def read(spec: DataSpec, preprocessing: str = "") -> LocalData:
    """Read a device's examples; a ValueError says where they are not as described, and what to do.

    `preprocessing` is JSON of `Preprocessing`, what the run's task does to its data. What is in the fast copy
    counts for as long as neither that nor the files have changed.
    """
    given = Preprocessing.from_json(preprocessing)
    if given.kind not in (CLASSIFICATION, REGRESSION):
        raise ValueError(
            f"data {spec.path}: a device's own targets are classes or numbers, which the run's criterion, "
            f"{given.kind}, does not take"
        )
    if not spec.fast_copy:
        return _read(spec, given)
    version, copy = _version(spec, preprocessing), Path(spec.fast_copy)
    with suppress(OSError, ValueError):
        arrays = read_arrays(copy, MAX_BYTES)
        if str(arrays.get(_VERSION)) == version:
            return _from_arrays(arrays, [], spec.path, given)
    data = _read(spec, given)
    known: dict[str, Any] = {_VERSION: np.array(version)}
    if data.num_classes is not None:
        known[_NUM_CLASSES] = np.array(data.num_classes)
    with suppress(OSError), replacing(copy) as temporary, temporary.open("wb") as file:
        np.savez(file, x=data.x, y=data.y, **known)
    return data


def _version(spec: DataSpec, preprocessing: str) -> str:
    """Return a text that changes whenever the files of the examples do, or how they are read."""
    path, seen = Path(spec.path), hashlib.sha256(repr((spec, preprocessing)).encode())
    for file in sorted([path, *path.rglob("*")] if path.is_dir() else [path]):
        with suppress(OSError):  # reading it will say so
            stat = file.stat()
            when = (stat.st_mtime_ns, stat.st_ctime_ns)
            seen.update(repr((str(file), stat.st_ino, stat.st_size, *when)).encode())
    return seen.hexdigest()


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Begin messages with the path of the data."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"data {error.filename or path}: {why(error)}") from None
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("data ") else f"data {path}: {text}") from None


def _read(spec: DataSpec, given: Preprocessing) -> LocalData:
    path, names = Path(spec.path), [name.strip() for name in spec.classes.split("+") if name.strip()]
    if len(set(names)) < len(names):
        raise ValueError(f"classes {spec.classes!r}: a name is given twice")
    with _naming(path):
        if given.kind == REGRESSION and (names or path.is_dir()):
            raise ValueError("it has classes, and the run's task predicts numbers")
        if path.is_dir() and given.vocabulary:
            raise ValueError("the run's task reads texts; give a CSV file, or an .npz file with their tokens")
        if path.is_dir():
            return _read_folder(path, names, given)
        suffix, unit = path.suffix.lower(), given.unit if given.kind == REGRESSION else None
        if suffix not in (".npz", ".csv"):
            raise ValueError("it is neither a folder of classes nor an .npz or .csv file")
        if suffix == ".npz":
            return _from_arrays(read_arrays(path, MAX_BYTES), names, str(path), given)
        rows = read_own_table(path, given, spec.target, names, MAX_BYTES)
        return LocalData(*rows, f"data {path}", unit, given.vocabulary)


def _from_arrays(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], path: str, given: Preprocessing
) -> LocalData:
    if missing := {"x", "y"} - arrays.keys():
        raise ValueError(f"it has no array {min(missing)!r}; x has the inputs and y the targets")
    x, y = arrays["x"], arrays["y"]
    x = _tokens(x, given.vocabulary) if given.vocabulary else _numbers("x", x)
    if y.ndim != 1 or len(y) != len(x):
        raise ValueError(
            f"x has shape {x.shape} and y {y.shape}; y must have one target for each example of x"
        )
    if given.kind == REGRESSION:
        return LocalData(x, _numbers("y", y), None, f"data {path}", given.unit, given.vocabulary)
    if y.dtype.kind not in "iub" and not (y.dtype.kind == "f" and np.equal(y, np.floor(y)).all()):
        raise ValueError(f"y has type {y.dtype}; it must have class numbers, from 0 on")
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise ValueError(f"y has classes from {y.min()} to {y.max()}; they must be numbered from 0 on")
    count = len(names) or (int(arrays[_NUM_CLASSES]) if _NUM_CLASSES in arrays else None)
    return LocalData(x, y.astype(np.int64), count, f"data {path}", None, given.vocabulary)


def _number_of(folder: str, names: Sequence[str]) -> int:
    """Return the number of the class of a folder, by the names of all classes or, without any, as it is."""
    if not names:
        return class_number(folder)
    if folder not in names:
        raise ValueError(f"{folder[:40]!r} is not one of the classes {'+'.join(names)[:200]}")
    return names.index(folder)


def _read_folder(path: Path, names: Sequence[str], given: Preprocessing) -> LocalData:
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not folders:
        raise ValueError("it has no subfolders; there must be one for each class")
    numbered = all(name.isascii() and name.isdigit() for name in folders)
    listed = names or ([] if numbered else folders)
    of_number: dict[int, str] = {}
    for folder in folders:
        if (other := of_number.setdefault(_number_of(folder, listed), folder)) != folder:
            raise ValueError(f"folders {other!r} and {folder!r} are of one class; move the examples into one")
    parts: list[NDArray[np.float32]] = []
    classes: list[int] = []
    size = 0
    for number, folder in of_number.items():
        for file in sorted((path / folder).iterdir()):
            if file.name[0] == ".":
                continue
            x = _read_inputs(file, given)
            if parts and x.shape[1:] != parts[0].shape[1:]:
                raise ValueError(
                    f"data {file}: an example has shape {x.shape[1:]}, and the first one "
                    f"{parts[0].shape[1:]}; bring all of them to one size, and to grey or to colour"
                )
            size += x.nbytes
            if size > MAX_BYTES:
                raise ValueError(
                    f"data {file}: more than {MAX_BYTES >> 20:,} MiB of inputs up to this file; give fewer"
                )
            parts.append(x)
            classes += [number] * len(x)
    if not classes:
        raise ValueError("its subfolders have no examples")
    return LocalData(np.concatenate(parts), np.array(classes, np.int64), len(listed) or None, f"data {path}")


def _read_inputs(file: Path, given: Preprocessing) -> NDArray[np.float32]:
    """Return the examples of one file in the folder of a class, shape (n, *input_shape)."""
    with _naming(file):
        if file.suffix.lower() in IMAGES:
            with opened(file) as image:
                pixels = pixels_of(image)[None]
            x = np.ascontiguousarray(pixels, np.float32) / np.float32(np.iinfo(pixels.dtype).max)
            if given.pixels:
                given.pixels.standardise(x)
            return x
        if file.suffix.lower() != ".npz":
            raise ValueError("it is neither an image nor an .npz file; take it out of the folder")
        arrays = read_arrays(file, MAX_BYTES)
        if "x" not in arrays:
            raise ValueError("it has no array 'x', the inputs")
        return _numbers("x", arrays["x"])


def _tokens(given: NDArray[Any], vocabulary: int) -> NDArray[np.int64]:
    if given.ndim != 2 or given.dtype.kind not in "iu" or not ((given >= 0) & (given < vocabulary)).all():
        raise ValueError(
            f"x has shape {given.shape} and type {given.dtype}; it must have a row of tokens for each text, "
            f"numbers from 0 to {vocabulary - 1} as the run's task has them"
        )
    return given.astype(np.int64)


def _numbers(name: str, given: NDArray[Any]) -> NDArray[np.float32]:
    if given.ndim < 1 or given.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has shape {given.shape} and type {given.dtype}; it must be numbers, one row each"
        )
    with np.errstate(over="ignore"):
        numbers = np.asarray(given, np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.argwhere(~np.isfinite(numbers))[0][0])
        raise ValueError(f"example {row} of {name} has a number that is missing, infinite or beyond 3.4e38")
    return numbers
