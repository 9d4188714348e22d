"""Tables: their columns as inputs, targets and owners; and the task of a CSV file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked
from fedtide.base.errors import SettingsError
from fedtide.base.numbers import Decimals
from fedtide.base.tables import read_table
from fedtide.base.wording import plain
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from fedtide.tasks.data import test_rows
from fedtide.tasks.dataset import Dataset, DividedTask, Owners, default_partition, distinct

MAX_CLASSES = 1000
MAX_NAMES = 50  # of columns in a message
MAX_NUMBERS = 1 << 30  # of the features, 4 GB
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")

Kind = Literal["classification", "regression"]
C = TypeVar("C", bound="Column")


class Column(ABC):
    """A column, from which values are read; SettingsError: one is missing or of another kind.

    Attributes
    ----------
    what
        The beginning of messages about it.
    is_category
        Whether it becomes a feature of 0 or 1 for each of its values; otherwise its numbers are features.
    """

    what: str

    @property
    @abstractmethod
    def is_category(self) -> bool: ...  # noqa: D102

    @abstractmethod
    def distinct(self) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the different values in order, and the position of each row's among them."""

    @abstractmethod
    def numbers(self) -> NDArray[np.float64]:
        """Return the finite numbers of each row, shape (n, d)."""

    def classes(self) -> tuple[NDArray[np.int64], int]:
        """Return the class of each row, and the number of classes."""
        values, found = self.distinct()
        if len(values) > MAX_CLASSES:
            reason = "if it has numbers to predict, set kind=regression"
            raise SettingsError(f"{self.what} has {len(values)} different values; {reason}")
        if len(values) < 2:
            raise SettingsError(f"{self.what} has the same value in all rows")
        return found.astype(np.int64), len(values)

    def indicators(self) -> NDArray[np.bool_]:
        """Return whether each row has each of the different values, shape (n, values)."""
        values, found = self.distinct()
        if len(values) > MAX_CLASSES:
            most = f"a category has at most {MAX_CLASSES}"
            raise SettingsError(f"{self.what} has {len(values)} different values; {most}: leave it out")
        indicators: NDArray[np.bool_] = found[:, None] == np.arange(len(values))
        return indicators


class Table(Generic[C]):
    """The columns of a table that have not been taken yet.

    Parameters
    ----------
    what
        The beginning of messages about it.
    columns
        By name.
    train
        Whether each row is a training example, shape (n,).
    """

    def __init__(self, what: str, columns: Mapping[str, C], train: NDArray[np.bool_]) -> None:
        self.what, self.columns, self.train = what, dict(columns), train

    def take(self, option: str, name: str) -> C:
        """Remove the column that an option names, and return it."""
        if name not in self.columns:
            known = ", ".join(plain(known, 40) for known in [*self.columns][:MAX_NAMES]) or "none"
            raise SettingsError(f"{self.what}: there is no column {name!r} ({option}); columns: {known}")
        return self.columns.pop(name)

    def take_all(self, option: str, names: str) -> list[C]:
        """Remove the columns that an option names with `+` between them, and return them."""
        return [self.take(option, name.strip()) for name in names.split("+") if name.strip()]

    def targets(self, option: str, name: str, kind: Kind) -> tuple[NDArray[Any], int, Criterion]:
        """Remove the column to predict; return the targets, the number of outputs and the criterion."""
        column = self.take(option, name)
        if kind == "classification":
            return *column.classes(), CROSS_ENTROPY
        numbers, deviation = self._standardised(column)
        if len(deviation) > 1:
            raise SettingsError(f"{column.what} has {len(deviation)} numbers in a row, not one to predict")
        return numbers[:, 0].astype(np.float32), 1, SquaredError(unit=float(deviation[0]))

    def features(self, columns: Sequence[C]) -> NDArray[np.float32]:
        """Return the features of columns: standardised numbers, and 0 or 1 for each value of a category."""
        parts: list[NDArray[Any]] = []
        for column in columns:
            if column.is_category:
                parts.append(column.indicators())
            else:
                parts.append(self._standardised(column)[0].astype(np.float32))
        if not parts:
            raise SettingsError(f"{self.what}: there is no column but the target and the client")
        if (size := len(self.train) * sum(part.shape[1] for part in parts)) > MAX_NUMBERS:
            raise SettingsError(
                f"{self.what}: {size:,} numbers, more than {MAX_NUMBERS:,}; leave columns or rows out"
            )
        return np.hstack(parts, dtype=np.float32)

    def _standardised(self, column: C) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return numbers with mean 0 and deviation 1 over the training examples, and their deviations before.

        Numbers that are all the same become 0.
        """
        numbers = column.numbers()
        deviation = numbers[self.train].std(0)
        deviation[deviation == 0] = 1
        numbers -= numbers[self.train].mean(0)
        numbers /= deviation
        return numbers, deviation


@dataclass(frozen=True)
class TextColumn(Column):
    """A column of a CSV file, a text for each row. `hint` ends the message about one that is not a number."""

    path: Path
    name: str
    texts: list[str]
    lines: Sequence[int]
    number: Decimals
    is_category: bool = False
    hint: str = ""

    @property
    def what(self) -> str:  # type: ignore[override]
        """See `Column`."""
        return f"{self.path}: column {self.name!r}"

    def distinct(self) -> tuple[list[str], NDArray[np.intp]]:
        """See `Column.distinct`."""
        self._require_values()
        return distinct(self.texts)

    def numbers(self) -> NDArray[np.float64]:
        """See `Column.numbers`."""
        self._require_values()
        found = np.empty(len(self.texts))
        for row, text in enumerate(self.texts):
            try:
                found[row] = self.number(text)
            except ValueError as error:
                raise SettingsError(f"{self._where(row)}: {error}{self.hint}") from None
        return found[:, None]

    def _require_values(self) -> None:
        for row, text in enumerate(self.texts):
            if text.lower() in MISSING:
                raise SettingsError(f"{self._where(row)}: a value is missing; add it, or remove the row")

    def _where(self, row: int) -> str:
        return f"{self.path}: line {self.lines[row]}, column {self.name!r}"


def read_columns(path: Path) -> Table[TextColumn]:
    """Read a CSV file whose first line names the columns, and which has other rows."""
    lines = array("q")
    try:
        table = read_table(path)
        columns: list[list[str]] = [[] for _ in table.names]
        for line, row in table.rows:
            lines.append(line)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not lines:
        raise SettingsError(f"{path}: there are no rows below the header")
    found = {
        name: TextColumn(path, name, texts, lines, table.number)
        for name, texts in zip(table.names, columns, strict=True)
    }
    return Table(str(path), found, ~test_rows(len(lines)))


@dataclass(frozen=True, kw_only=True)
class Tabular(DividedTask, Checked):
    """CSV file of your own: a row for each example, a column for each feature.

    The first line names the columns, with commas, semicolons or tabs between them; with semicolons, numbers
    may have decimal commas. A column without a name, such as pandas' index, is left out. All columns but the
    target, the client and those to drop are features: numbers, which are standardised over the training
    examples of all clients, and categories, which become a feature of 0 or 1 for each of their values. A
    fifth of the rows, always the same, form the test set.

    Attributes
    ----------
    file
        The file.
    target
        The column to predict.
    client
        The column that says whose example a row is; clients are numbered in the order of their names, or
        numbers, and are those of a recording with the same names. Without one, a partition divides the rows.
    kind
        `classification`: the target's values are classes, in their order, and 1, 1.0 and 01 are one of them;
        or `regression`: they are numbers, and the mean absolute error is reported in their unit.
    categories, drop
        Columns that are categories, and that are not used, with `+` between them.
    """

    file: str
    target: str
    client: str = ""
    kind: Kind = "classification"
    categories: str = ""
    drop: str = ""

    name = "csv"

    @property
    def default_partition(self) -> str | None:  # type: ignore[override]
        """None if a column names the clients."""
        return default_partition(bool(self.client), self.kind == "classification")

    @property
    def default_model(self) -> str:  # type: ignore[override]
        """The simplest one."""
        return "logistic" if self.kind == "classification" else "mlp"

    def dataset(self) -> Dataset:
        """Read the file."""
        table = read_columns(Path(self.file))
        table.take_all("drop", self.drop)
        train, owners = table.train, None
        if self.client:
            what = f"{self.file}: column {self.client!r} names the owners of training examples"
            names, clients = table.take("client", self.client).distinct()
            owners = Owners(what, clients[train], len(names), names)
        y, num_outputs, criterion = table.targets("target", self.target, self.kind)
        categories = [replace(c, is_category=True) for c in table.take_all("categories", self.categories)]
        hint = "; if {!r} is a category, name it in categories="
        numbers = [replace(column, hint=hint.format(name)) for name, column in table.columns.items()]
        x = table.features([*categories, *numbers])
        return Dataset((x[train], y[train]), (x[~train], y[~train]), num_outputs, criterion, owners=owners)
