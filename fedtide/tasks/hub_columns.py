"""The columns of a Hugging Face data set: classes, numbers, images and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError, described
from fedtide.base.images import stacked
from fedtide.base.wording import plain
from fedtide.tasks.tables import Column

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS = ("string", "large_string")


@dataclass(frozen=True)
class HubColumn(Column):
    """A column, of the training and then of the test split, given by name."""

    what: str
    name: str
    splits: Mapping[str, Dataset]

    @property
    def feature(self) -> Any:
        """Its type: a feature of Hugging Face's."""
        return next(iter(self.splits.values())).features[self.name]

    @property
    def kind(self) -> str:
        """What its values are."""
        return plain(getattr(self.feature, "dtype", None) or self.feature, 60)

    @property
    def is_category(self) -> bool:
        """Whether its values are labels, texts or truth values."""
        return hasattr(self.feature, "names") or self.kind in (*TEXTS, "bool")

    def distinct(self) -> tuple[list[Any], NDArray[np.intp]]:
        import pyarrow

        array = self._arrow()
        try:
            encoded = array.dictionary_encode()
        except pyarrow.ArrowNotImplementedError:
            raise SettingsError(f"{self.what} has {self.kind}, not classes or names") from None
        values = encoded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        position = np.empty(len(order), np.intp)
        position[order] = np.arange(len(order))
        return [values[k] for k in order], position[encoded.indices.to_numpy()]

    def classes(self) -> tuple[NDArray[np.int64], list[Any]]:
        """See `Column.classes`; those of a label are numbered as its names are."""
        if not (names := getattr(self.feature, "names", None)):
            return super().classes()
        values, found = self.distinct()
        labels = np.array(values, np.int64)[found]
        self._refuse(labels < 0, "a label is missing (-1)")
        return labels, [*names]

    def numbers(self) -> NDArray[np.float64]:
        import pyarrow.compute as compute
        import pyarrow.types as types

        array = flat = self._arrow()
        kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        if any(is_kind(array.type) for is_kind in kinds):
            flat = array.flatten()
            least, most = compute.min_max(compute.list_value_length(array)).as_py().values()
            if not most or least != most:
                raise SettingsError(f"{self.what} has lists of different lengths")
        if not (types.is_integer(flat.type) or types.is_floating(flat.type) or types.is_boolean(flat.type)):
            raise SettingsError(f"{self.what} has {self.kind}, not numbers")
        rows = flat.to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(array), -1)
        self._refuse(~np.isfinite(rows).all(1), "a number is missing or infinite")
        numbers: NDArray[np.float64] = rows
        return numbers

    def texts(self) -> list[str]:
        """Return the text of each row."""
        if self.kind not in TEXTS:
            raise SettingsError(f"{self.what} has {self.kind}, not texts")
        texts: list[str] = self._arrow().to_pylist()
        return texts

    def pixels(self, size: int) -> NDArray[np.unsignedinteger]:
        """Return images, shape (n, C, H, W), resized if `size` is not 0: see `stacked`."""
        if type(self.feature).__name__ != "Image":
            raise SettingsError(f"{self.what} has {self.kind}, not images; cast it to datasets.Image()")
        count = sum(map(len, self.splits.values()))
        return stacked(self._images(), count, size, self.what, self._row)

    def _images(self) -> Iterator[Any]:
        """Yield the images as Pillow opens them."""
        row = 0
        for split in self.splits.values():
            decoded = iter(split.select_columns([self.name]))
            for _ in range(len(split)):
                try:
                    (image,) = next(decoded).values()
                except Exception as error:  # whatever Pillow raises at a damaged file
                    reason = f"the image cannot be read: {plain(described(error))}; leave such rows out"
                    raise SettingsError(f"{self._row(row)}: {reason}") from None
                if image is None:
                    raise SettingsError(f"{self._row(row)}: an image is missing")
                yield image
                row += 1

    def _arrow(self) -> Any:
        """Return the values as one array of Arrow, none of which is missing."""
        import pyarrow

        parts = [split.select_columns([self.name]) for split in self.splits.values()]
        tables = [part.with_format("arrow")[:] for part in parts]
        array = pyarrow.chunked_array([chunk for table in tables for chunk in table.column(0).chunks])
        array = array.combine_chunks()
        if array.null_count:
            self._refuse(array.is_null().to_numpy(zero_copy_only=False), "a value is missing")
        return array.storage if isinstance(array, pyarrow.ExtensionArray) else array

    def _refuse(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Raise SettingsError for the first row that is wrong, if one is."""
        if wrong.any():
            raise SettingsError(f"{self._row(int(np.argmax(wrong)))}: {reason}; leave such rows out")

    def _row(self, row: int) -> str:
        """Return where a row is, counted from 0 in its split."""
        for name, split in self.splits.items():
            if row < len(split):
                return f"{self.what}, row {row} of split {plain(name, 40)}"
            row -= len(split)
        raise IndexError(row)
