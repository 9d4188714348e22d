"""A device's own examples, read from its files: an .npz file, a CSV file, or a folder of classes.

- `.npz`: `x`, inputs of shape (n, ...), and `y`, class numbers of shape (n,). It may be compressed.
- `.csv`: the first line names the columns; one is the class (`target`, else the last), the
  others are numbers.
- a folder: a subfolder for each class, with images, or .npz files that have `x`.

A class must have the same number on every device. Classes are numbers from 0 on; or names, which `classes`
lists in their order (`cat+dog`). Without it, subfolders with names are numbered in the order of their names,
and there must be one for each output of the model, empty where a device has no such example.

Numbers are used as they are: scale them alike on all devices and at the server. Images become shape (1, H, W)
if they are grey, else (3, H, W), from 0 to 1. Nothing is unpickled, and memory is bounded.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.files import open_regular, read_arrays, replacing
from fedtide.base.images import pixels_of
from fedtide.base.tables import read_table

MAX_BYTES = 1 << 30  # of the inputs, and of an .npz file
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".webp", ".tif", ".tiff")
_MAX_PIXELS = 1 << 26  # of an image, before it is decoded
_NUM_CLASSES, _VERSION = "num_classes", "version"  # in a fast copy


class DataSpec(NamedTuple):
    """Where a device's examples are; see the beginning of this file."""

    path: str
    target: str = ""  # the column of a CSV file that has the class; empty: the last
    classes: str = ""  # their names, with `+` between them; empty: their numbers
    fast_copy: str = ""  # an .npz file in which they are kept once they have been read; empty: there is none


class LocalData(NamedTuple):
    """A device's examples: inputs of shape (n, *input_shape), class numbers, and where they were read."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    num_classes: int | None = None  # None: not known
    source: str = "the data"

    def check(self, input_size: int, num_outputs: int) -> None:
        """Raise ValueError unless a model of so many inputs and classes can be trained on the examples."""
        size = int(np.prod(self.x.shape[1:]))
        if size != input_size:
            raise ValueError(
                f"{self.source}: an example has shape {self.x.shape[1:]}, {size} numbers, and the model of "
                f"the run takes {input_size}; set another task or model, or prepare the data for this one"
            )
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


def read(spec: DataSpec) -> LocalData:
    """Read a device's examples; a ValueError says where they are not as described, and what to do.

    What is in the fast copy counts for as long as the files have not changed.
    """
    if not spec.fast_copy:
        return _read(spec)
    version, copy = _version(spec), Path(spec.fast_copy)
    with suppress(OSError, ValueError):
        arrays = read_arrays(copy, MAX_BYTES)
        if str(arrays.get(_VERSION)) == version:
            return _from_arrays(arrays, [], spec.path)
    data = _read(spec)
    known: dict[str, Any] = {_VERSION: np.array(version)}
    if data.num_classes is not None:
        known[_NUM_CLASSES] = np.array(data.num_classes)
    with suppress(OSError), replacing(copy) as temporary, temporary.open("wb") as file:
        np.savez(file, x=data.x, y=data.y, **known)
    return data


def _version(spec: DataSpec) -> str:
    """Return a text that changes whenever the files of the examples do, or how they are read."""
    path, seen = Path(spec.path), hashlib.sha256(repr(spec).encode())
    for file in sorted([path, *path.rglob("*")] if path.is_dir() else [path]):
        with suppress(OSError):  # reading it will say so
            stat = file.stat()
            when = (stat.st_mtime_ns, stat.st_ctime_ns)
            seen.update(repr((str(file), stat.st_ino, stat.st_size, *when)).encode())
    return seen.hexdigest()


def _read(spec: DataSpec) -> LocalData:
    path, names = Path(spec.path), [name.strip() for name in spec.classes.split("+") if name.strip()]
    if len(set(names)) < len(names):
        raise ValueError(f"classes {spec.classes!r}: a name is given twice")
    try:
        if path.is_dir():
            return _read_folder(path, names)
        suffix = path.suffix.lower()
        if suffix not in (".npz", ".csv"):
            raise ValueError("it is neither a folder of classes nor an .npz or .csv file")
        return _read_npz(path, names) if suffix == ".npz" else _read_csv(path, spec.target, names)
    except OSError as error:
        raise ValueError(f"data {error.filename or path}: {error.strerror or error}") from None
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("data ") else f"data {path}: {text}") from None


def _read_npz(path: Path, names: Sequence[str]) -> LocalData:
    return _from_arrays(read_arrays(path, MAX_BYTES), names, str(path))


def _from_arrays(arrays: Mapping[str, NDArray[Any]], names: Sequence[str], path: str) -> LocalData:
    if missing := {"x", "y"} - arrays.keys():
        raise ValueError(f"it has no array {min(missing)!r}; x has the inputs and y the classes")
    x, y = _inputs(arrays["x"]), arrays["y"]
    if y.ndim != 1 or len(y) != len(x):
        raise ValueError(
            f"x has shape {x.shape} and y {y.shape}; y must have one class for each example of x"
        )
    if y.dtype.kind not in "iub" and not (y.dtype.kind == "f" and np.equal(y, np.floor(y)).all()):
        raise ValueError(f"y has type {y.dtype}; it must have class numbers, from 0 on")
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise ValueError(f"y has classes from {y.min()} to {y.max()}; they must be numbered from 0 on")
    count = len(names) or (int(arrays[_NUM_CLASSES]) if _NUM_CLASSES in arrays else None)
    return LocalData(x, y.astype(np.int64), count, f"data {path}")


def _read_csv(path: Path, target: str, names: Sequence[str]) -> LocalData:
    table = read_table(path)
    columns = table.names
    target = target or (columns[-1] if columns else "")
    if target not in columns or len(columns) < 2:
        listed = ", ".join(columns[:50])
        raise ValueError(f"there is no column {target!r} (target) beside others; columns: {listed}")
    at = columns.index(target)
    others = [*columns[:at], *columns[at + 1 :]]
    number_of = _numbering(names)
    values, classes, lines = array("f"), array("q"), array("q")
    for line, row in table.rows:
        lines.append(line)
        try:
            classes.append(number_of(row.pop(at)))
        except ValueError as error:
            raise ValueError(f"line {line}, column {target!r}: {error}") from None
        try:
            values.extend(map(table.number, row))
        except ValueError as error:
            bad = len(values) % len(row)  # those before it have been added
            raise ValueError(f"line {line}, column {others[bad]!r}: {error}") from None
        if len(values) * values.itemsize > MAX_BYTES:
            raise ValueError(f"line {line}: more than {MAX_BYTES >> 20:,} MiB of numbers; give fewer rows")
    if not classes:
        raise ValueError("there are no rows below the header")
    x = np.frombuffer(values, np.float32).reshape(len(classes), -1)
    if not np.isfinite(x).all():
        at_row, column = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(f"line {lines[at_row]}, column {others[column]!r}: the number is too large")
    return LocalData(x, np.frombuffer(classes, np.int64), len(names) or None, f"data {path}")


def _numbering(names: Sequence[str]) -> Callable[[str], int]:
    """Return a function that gives the number of a class, by its name or as it is."""
    positions = {name: position for position, name in enumerate(names)}

    def number(text: str) -> int:
        if names:
            if text not in positions:
                raise ValueError(f"{text[:40]!r} is not one of the classes {'+'.join(names)[:200]}")
            return positions[text]
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ValueError(
                f"{text[:40]!r} is not the number of a class, 0 or more; name the classes in their order "
                "(classes), such as cat+dog, the same on all devices"
            )
        return int(text)

    return number


def _read_folder(path: Path, names: Sequence[str]) -> LocalData:
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not folders:
        raise ValueError("it has no subfolders; there must be one for each class")
    numbered = all(name.isascii() and name.isdigit() for name in folders)
    listed = names or ([] if numbered else folders)
    number_of = _numbering(listed)
    parts: list[NDArray[np.float32]] = []
    classes: list[int] = []
    size = 0
    for folder in folders:
        number = number_of(folder)
        for file in sorted((path / folder).iterdir()):
            if file.name[0] == ".":
                continue
            x = _read_inputs(file)
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


def _read_inputs(file: Path) -> NDArray[np.float32]:
    """Return the examples of one file in the folder of a class, shape (n, *input_shape)."""
    suffix = file.suffix.lower()
    try:
        if suffix in IMAGES:
            return _read_image(file)[None]
        if suffix != ".npz":
            raise ValueError("it is neither an image nor an .npz file; take it out of the folder")
        arrays = read_arrays(file, MAX_BYTES)
        if "x" not in arrays:
            raise ValueError("it has no array 'x', the inputs")
        return _inputs(arrays["x"])
    except OSError as error:
        raise ValueError(f"data {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"data {file}: {error}") from None


def _read_image(file: Path) -> NDArray[np.float32]:
    """Return an image, shape (1, H, W) or (3, H, W), from 0 to 1."""
    try:
        from PIL import Image, UnidentifiedImageError  # not needed for other data
    except ImportError:
        raise ValueError("reading images needs Pillow: pip install pillow") from None
    with open_regular(file) as opened:
        try:
            with Image.open(opened) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise ValueError(f"{image.width}x{image.height} pixels; make it smaller")
                pixels = pixels_of(image)
        except (UnidentifiedImageError, SyntaxError, Image.DecompressionBombError):
            raise ValueError("it is not an image that can be read") from None
    return np.ascontiguousarray(pixels, np.float32) / np.float32(np.iinfo(pixels.dtype).max)


def _inputs(given: NDArray[Any]) -> NDArray[np.float32]:
    if given.ndim < 1 or given.dtype.kind not in "fiub":
        raise ValueError(
            f"x has shape {given.shape} and type {given.dtype}; it must be numbers, one row each"
        )
    with np.errstate(over="ignore"):
        x = np.asarray(given, np.float32)
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise ValueError(f"example {row} of x has a number that is missing, infinite or beyond 3.4e38")
    return x
