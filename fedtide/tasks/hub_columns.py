"""The columns of a Hugging Face data set as arrays: classes, numbers, images and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError, described
from fedtide.ground.images import pixels_of
from fedtide.ground.wording import plain
from fedtide.tasks.data import Examples
from fedtide.tasks.images import standardised
from fedtide.tasks.tabular import MAX_CLASSES, check_classes

if TYPE_CHECKING:
    from datasets import Dataset

MAX_NAMES = 50  # of columns in a message
MAX_NUMBERS = 1 << 30  # of the features (4 GB), or of the pixels
BLOCK = 10_000  # images whose pixels are counted at a time


@dataclass(frozen=True)
class Pixels:
    """Makes of stored pixels what models get: standardised by mean and deviation of a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, pixels: NDArray[np.unsignedinteger]) -> Pixels:
        """Determine both from images of shape (n, C, H, W)."""
        largest = np.iinfo(pixels.dtype).max
        counts = np.zeros((pixels.shape[1], largest + 1))
        for start in range(0, len(pixels), BLOCK):
            for channel, count in enumerate(counts):
                count += np.bincount(pixels[start : start + BLOCK, channel].ravel(), minlength=largest + 1)
        values, shares = np.arange(largest + 1) / largest, counts / counts.sum(1, keepdims=True)
        mean = shares @ values
        std = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))
        return cls(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist()))

    @property
    def black(self) -> tuple[float, ...]:
        """What a pixel of 0 becomes."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def __call__(self, stored: Examples) -> Examples:
        """Return images as models get them, and the same targets."""
        return standardised(stored[0], self.mean, self.std), stored[1]


@dataclass(frozen=True)
class Column:
    """A column, of the training and then of the test split.

    `parts` are the splits with this column alone, by name, and `what` begins messages.
    """

    what: str
    parts: Mapping[str, Dataset]

    @property
    def feature(self) -> Any:
        """Its type: a feature of Hugging Face's."""
        (feature,) = next(iter(self.parts.values())).features.values()
        return feature

    def distinct(self) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the different values in order, and the position of each row's among them."""
        import pyarrow

        array = self._arrow()
        try:
            encoded = array.dictionary_encode()
        except pyarrow.ArrowNotImplementedError:
            raise SettingsError(f"{self.what} has {self._kind}, not classes or names") from None
        values = encoded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        position = np.empty(len(order), np.intp)
        position[order] = np.arange(len(order))
        return [values[k] for k in order], position[encoded.indices.to_numpy()]

    def classes(self) -> tuple[NDArray[np.int64], int]:
        """Return the class of each row, and the number of classes."""
        values, found = self.distinct()
        if names := getattr(self.feature, "names", None):
            self._refuse(np.array(values)[found] < 0, "a label is missing (-1)")
            return np.array(values, np.int64)[found], len(names)
        check_classes(len(values), self.what)
        return found.astype(np.int64), len(values)

    def numbers(self, train: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return rows of numbers with mean 0 and deviation 1 in training, and these deviations before."""
        import pyarrow.types as types

        array = self._arrow()
        if (
            types.is_list(array.type)
            or types.is_large_list(array.type)
            or types.is_fixed_size_list(array.type)
        ):
            flat = array.flatten()
            if not len(array) or len(flat) % len(array) or not _same_lengths(array):
                raise SettingsError(f"{self.what} has lists of different lengths")
        else:
            flat = array
        if not (types.is_integer(flat.type) or types.is_floating(flat.type) or types.is_boolean(flat.type)):
            raise SettingsError(f"{self.what} has {self._kind}, not numbers")
        rows = flat.to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(array), -1)
        self._refuse(~np.isfinite(rows).all(1), "a number is missing or infinite")
        deviation = rows[train].std(0)
        deviation[deviation == 0] = 1
        rows -= rows[train].mean(0)
        rows /= deviation
        return rows, deviation

    def texts(self) -> list[str]:
        """Return the text of each row."""
        if getattr(self.feature, "dtype", None) not in ("string", "large_string"):
            raise SettingsError(f"{self.what} has {self._kind}, not texts")
        texts: list[str] = self._arrow().to_pylist()
        return texts

    def pixels(self, size: int) -> NDArray[np.unsignedinteger]:
        """Return images, shape (n, C, H, W), resized if `size` is not 0: see `pixels_of`.

        All are grey, or the first one is in colour.
        """
        if type(self.feature).__name__ != "Image":
            raise SettingsError(f"{self.what} has {self._kind}, not images; cast it to datasets.Image()")
        count, row = sum(map(len, self.parts.values())), 0
        images: NDArray[np.unsignedinteger] = np.empty(0, np.uint8)
        for part in self.parts.values():
            decoded = iter(part)
            for _ in range(len(part)):
                try:
                    (image,) = next(decoded).values()
                except Exception as error:  # whatever Pillow raises at a damaged file
                    reason = f"the image cannot be read: {plain(described(error))}; leave such rows out"
                    raise SettingsError(f"{self._row(row)}: {reason}") from None
                if image is None:
                    raise SettingsError(f"{self._row(row)}: an image is missing")
                try:
                    pixels = pixels_of(image, size)
                except ValueError as error:
                    raise SettingsError(f"{self._row(row)}: {error}") from None
                if not row:
                    if count * pixels.size > MAX_NUMBERS:
                        total = f"{count:,} images of {pixels.size:,} pixels"
                        raise SettingsError(f"{self.what}: {total} are too many; set size=, or take a part")
                    images = np.empty((count, *pixels.shape), pixels.dtype)
                if len(pixels) < images.shape[1] and pixels.dtype == images.dtype:
                    pixels = np.repeat(pixels, images.shape[1], axis=0)  # grey, among images in colour
                if (len(pixels), pixels.dtype) != (images.shape[1], images.dtype):
                    kinds = " and ".join(_kind_of(x) for x in (images[0], pixels))
                    raise SettingsError(
                        f"{self._row(row)}: {kinds} images are mixed; convert them to one kind"
                    )
                if pixels.shape != images.shape[1:]:
                    sizes = " and ".join(f"{s[1]}x{s[2]}" for s in (images.shape[1:], pixels.shape))
                    raise SettingsError(f"{self.what} has images of {sizes} pixels; set size=")
                images[row] = pixels
                row += 1
        return images

    @property
    def _kind(self) -> str:
        """What its values are, for messages."""
        return plain(getattr(self.feature, "dtype", None) or self.feature, 60)

    def _arrow(self) -> Any:
        """Return the values as one array of Arrow, none of which is missing."""
        import pyarrow

        tables = [part.with_format("arrow")[:] for part in self.parts.values()]
        array = pyarrow.chunked_array([chunk for table in tables for chunk in table.column(0).chunks])
        array = array.combine_chunks()
        if array.null_count:
            self._refuse(array.is_null().to_numpy(zero_copy_only=False), "a value is missing")
        return array.storage if isinstance(array, pyarrow.ExtensionArray) else array

    def _refuse(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Raise ValueError for the first row that is wrong, if one is."""
        if wrong.any():
            raise SettingsError(f"{self._row(int(np.argmax(wrong)))}: {reason}; leave such rows out")

    def _row(self, row: int) -> str:
        """Return where a row is, counted from 0 in its split."""
        for split, part in self.parts.items():
            if row < len(part):
                return f"{self.what}, row {row} of split {plain(split, 40)}"
            row -= len(part)
        raise IndexError(row)


class Columns:
    """The columns of a data set that have not been taken yet.

    Parameters
    ----------
    name
        Of the data set, for messages.
    parts
        The training split, and the test split if there is one, by name.
    train
        Which of all their rows are training examples.
    """

    def __init__(self, name: str, parts: Mapping[str, Dataset], train: NDArray[np.bool_]) -> None:
        self.name, self.parts, self.train = name, parts, train
        self.names = [*next(iter(parts.values())).features]

    def take(self, option: str, name: str) -> Column:
        """Remove a column and return it; ValueError: there is none of this name."""
        if name not in self.names:
            known = ", ".join(plain(known, 40) for known in self.names[:MAX_NAMES])
            raise SettingsError(
                f"task hf: {self.name}: there is no column {name!r} ({option}); columns: {known or 'none'}"
            )
        self.names.remove(name)
        one = {split: part.select_columns([name]) for split, part in self.parts.items()}
        return Column(f"task hf: {self.name}: column {name!r}", one)

    def table(self, names: list[str]) -> NDArray[np.float32]:
        """Remove columns and return their features: numbers, and a 0 or 1 for each other value there is."""
        parts: list[NDArray[Any]] = []
        for column in [self.take("features", name) for name in names]:
            feature = column.feature
            if hasattr(feature, "names") or getattr(feature, "dtype", None) in (
                "string",
                "large_string",
                "bool",
            ):
                values, found = column.distinct()
                if len(values) > MAX_CLASSES:
                    most = f"a category has at most {MAX_CLASSES}"
                    raise SettingsError(
                        f"{column.what} has {len(values)} different values; {most}: name others"
                    )
                parts.append(found[:, None] == np.arange(len(values)))
            else:
                parts.append(column.numbers(self.train)[0].astype(np.float32))
        if not parts:
            raise SettingsError(f"task hf: {self.name}: there is no column but the label and the client")
        if (size := len(self.train) * sum(part.shape[1] for part in parts)) > MAX_NUMBERS:
            raise SettingsError(
                f"task hf: {self.name}: {size:,} features, more than {MAX_NUMBERS:,}; name fewer"
            )
        return np.hstack(parts, dtype=np.float32)


def _kind_of(image: NDArray[Any]) -> str:
    return f"{'grey' if len(image) == 1 else 'colour'} ({image.dtype.itemsize * 8} bits)"


def _same_lengths(array: Any) -> bool:
    import pyarrow.compute as compute

    least, most = compute.min_max(compute.list_value_length(array)).as_py().values()
    return bool(least == most and most)
