"""Tabular data from a CSV file: classification or regression, divided by a column or by a partition."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Checked
from fedtide.ground.errors import SettingsError
from fedtide.ground.numbers import Decimals
from fedtide.ground.tables import read_table
from fedtide.ground.wording import plain
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from fedtide.tasks.data import FederatedData, test_rows
from fedtide.tasks.dataset import Dataset, DividedTask, Owners, distinct
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

MAX_CLASSES = 1000
MAX_NAMES = 50  # of columns in a message
MAX_NUMBERS = 1 << 30  # of the features, 8 GB
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


def check_classes(count: int, column: str) -> None:
    """Raise ValueError if a column with so many different values cannot be predicted as classes."""
    if count > MAX_CLASSES:
        reason = "if it has numbers to predict, set kind=regression"
        raise SettingsError(f"{column} has {count} different values; {reason}")
    if count < 2:
        raise SettingsError(f"{column} has the same value in all rows")


@dataclass(frozen=True)
class Columns:
    """The columns of a CSV file by name, each with one text for each row, and the line of each row."""

    path: Path
    values: dict[str, list[str]]
    lines: Sequence[int]
    number: Decimals

    def take(self, option: str, name: str) -> list[str]:
        """Remove a column without empty cells and return it."""
        texts = self.remove(option, name)
        for row, text in enumerate(texts):
            if text.lower() in MISSING:
                raise SettingsError(f"{self.where(row, name)}: a value is missing; add it, or remove the row")
        return texts

    def remove(self, option: str, name: str) -> list[str]:
        """Remove a column and return its texts, whatever they are."""
        if name not in self.values:
            known = ", ".join(plain(known, 40) for known in [*self.values][:MAX_NAMES])
            raise SettingsError(f"{self.path}: there is no column {name!r} ({option}); columns: {known}")
        return self.values.pop(name)

    def numbers(self, option: str, name: str) -> NDArray[np.float64]:
        """Remove a column of finite numbers and return it."""
        texts = self.take(option, name)
        found = np.empty(len(texts))
        for row, text in enumerate(texts):
            try:
                found[row] = self.number(text)
            except ValueError as error:
                hint = "" if option == "target" else f"; if {name!r} is a category, name it in categories="
                raise SettingsError(f"{self.where(row, name)}: {error}{hint}") from None
        return found

    def where(self, row: int, name: str) -> str:
        """Return where a value stands, for messages."""
        return f"{self.path}: line {self.lines[row]}, column {name!r}"


def read_columns(path: Path) -> Columns:
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
    return Columns(path, dict(zip(table.names, columns, strict=True)), lines, table.number)


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
        The column that says whose example it is; clients are numbered in the order of their names, or
        numbers, and are those of a recording with the same names. Without one, the rows are divided by a
        partition.
    kind
        `classification`, where the target's values are classes, in their order, and 1, 1.0 and 01 one of
        them; or `regression`,
        where they are numbers, and the mean absolute error is reported in their unit.
    categories, drop
        Columns that are categories, and that are not used, with `+` between them.
    """

    file: str
    target: str
    client: str = ""
    kind: Literal["classification", "regression"] = "classification"
    categories: str = ""
    drop: str = ""

    name = "csv"

    @property
    def default_partition(self) -> str | None:  # type: ignore[override]
        """None if a column names the clients."""
        if self.client:
            return None
        return "dirichlet:alpha=0.5" if self.kind == "classification" else "iid"

    @property
    def default_model(self) -> str:  # type: ignore[override]
        """The simplest one."""
        return "logistic" if self.kind == "classification" else "mlp"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Give each client its rows; see `TaskSource.federate`."""
        if not self.client:
            return super().federate(num_clients, partition, sizes, holdout, seed)
        dataset, owners = self.load()
        assert owners is not None
        what = f"{self.file}: column {self.client!r} names the owners of training examples"
        return dataset.divide_by_owner(what, owners, num_clients, sizes, holdout, seed)

    def dataset(self) -> Dataset:
        """Read the file."""
        return self.load()[0]

    def load(self) -> tuple[Dataset, Owners | None]:
        """Read the file; return the data set and whose the training examples are, if a column says so."""
        columns = read_columns(Path(self.file))
        test = test_rows(len(next(iter(columns.values.values()))))
        for name in _names(self.drop):
            columns.remove("drop", name)
        owners = Owners.named(columns.take("client", self.client), ~test) if self.client else None
        y, num_outputs, criterion = self._targets(columns, test)
        x = self._features(columns, test)
        data = Dataset((x[~test], y[~test]), (x[test], y[test]), num_outputs, criterion)
        return data, owners

    def _targets(self, columns: Columns, test: NDArray[np.bool_]) -> tuple[NDArray[Any], int, Criterion]:
        if self.kind == "regression":
            numbers = columns.numbers("target", self.target)
            standardised, deviation = _standardised(numbers, ~test)
            return standardised, 1, SquaredError(unit=deviation)
        values, classes = distinct(columns.take("target", self.target))
        check_classes(len(values), f"{self.file}: column {self.target!r}")
        return classes, len(values), CROSS_ENTROPY

    def _features(self, columns: Columns, test: NDArray[np.bool_]) -> NDArray[np.float64]:
        parts: list[NDArray[Any]] = []
        for name in _names(self.categories):
            values, found = distinct(columns.take("categories", name))
            if len(values) > MAX_CLASSES:
                raise SettingsError(
                    f"{self.file}: column {name!r} has {len(values)} different values; a category has at "
                    f"most {MAX_CLASSES}: drop it, or leave it a number"
                )
            parts.append(found[:, None] == np.arange(len(values)))
        for name in list(columns.values):
            numbers = columns.numbers("a feature", name)
            parts.append(_standardised(numbers, ~test)[0][:, None])
        if not parts:
            raise SettingsError(f"{self.file}: there is no column but the target and the client")
        if (size := len(test) * sum(part.shape[1] for part in parts)) > MAX_NUMBERS:
            raise SettingsError(
                f"{self.file}: {size:,} numbers, more than {MAX_NUMBERS:,}; drop columns or rows"
            )
        return np.hstack(parts)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split("+") if name.strip())


def _standardised(values: NDArray[np.float64], train: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Return values with mean 0 and deviation 1 over the training examples, and their deviation until then.

    Values that are all the same become 0.
    """
    deviation = float(np.std(values[train])) or 1.0
    return (values - float(np.mean(values[train]))) / deviation, deviation
