"""Tabular data from a CSV file: classification or regression, divided by a column or by a partition."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.files import read_rows
from flexfl.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from flexfl.tasks.data import FederatedData, PartitionedData
from flexfl.tasks.dataset import Dataset, DatasetTask
from flexfl.tasks.partition_base import PartitionFn
from flexfl.tasks.sizes import SizesFn, require_own_sizes
from flexfl.tasks.source import TaskSource

TEST_SHARE = 0.2
MOST_CLASSES = 1000
MOST_NAMES = 50  # of columns in a message
MOST_NUMBERS = 1 << 30  # of the features, 8 GB
Kind = Literal["classification", "regression"]
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


@dataclass(frozen=True)
class Columns:
    """The columns of a CSV file by name, each with one text for each row."""

    path: Path
    values: dict[str, list[str]]

    def take(self, option: str, name: str) -> list[str]:
        """Remove a column and return it.

        Raises
        ------
        ValueError
            There is no such column, or it has empty cells.
        """
        texts = self.remove(option, name)
        for row, text in enumerate(texts):
            if text.lower() in MISSING:
                raise ValueError(f"{self.where(row, name)}: a value is missing; add it, or remove the row")
        return texts

    def remove(self, option: str, name: str) -> list[str]:
        """Remove a column and return its texts, whatever they are."""
        if name not in self.values:
            known = ", ".join(map(_printable, [*self.values][:MOST_NAMES]))
            raise ValueError(f"{self.path}: there is no column {name!r} ({option}); columns: {known}")
        return self.values.pop(name)

    def numbers(self, option: str, name: str) -> NDArray[np.float64]:
        """Remove a column and return its numbers.

        Raises
        ------
        ValueError
            There is no such column, or a value is missing or no finite number.
        """
        texts = self.take(option, name)
        found = np.empty(len(texts))
        for row, text in enumerate(texts):
            try:
                found[row] = float(text)
            except ValueError:
                hint = "" if option == "target" else f"; if {name!r} is a category, name it in categories="
                raise ValueError(f"{self.where(row, name)}: {text[:40]!r} is not a number{hint}") from None
        if not np.isfinite(found).all():
            row = int(np.flatnonzero(~np.isfinite(found))[0])
            raise ValueError(f"{self.where(row, name)}: {texts[row][:40]!r} is not a finite number")
        return found

    def where(self, row: int, name: str) -> str:
        """Return where a value stands, for messages; the header is line 1."""
        return f"{self.path}: line {row + 2}, column {name!r}"


def read_columns(path: Path) -> Columns:
    """Read a CSV file whose first line names the columns.

    Raises
    ------
    ValueError
        The file cannot be read, has no rows, or a row has more or fewer values than there are columns.
    """
    try:
        rows = read_rows(path)
        names = next(rows, [])
        columns: list[list[str]] = [[] for _ in names]
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not names or not columns[0]:
        raise ValueError(f"{path}: there are no rows below the header")
    return Columns(path, dict(zip(names, columns, strict=True)))


def tabular(
    *,
    file: str = "",
    target: str = "",
    client: str = "",
    kind: Kind = "classification",
    categories: str = "",
    drop: str = "",
) -> TaskSource:
    """CSV file of your own: a row for each example, a column for each feature.

    The first line names the columns. All columns but the target, the client and those to drop are features:
    numbers, which are standardised over the training examples of all clients, and categories, which become
    a feature of 0 or 1 for each of their values. A fifth of the rows, always the same, form the test set.

    Parameters
    ----------
    file : str
        The file.
    target : str
        The column to predict.
    client : str
        The column that says whose example it is; clients are numbered in the order of their names, or
        numbers. Without one, the rows are divided by a partition.
    kind : str
        `classification`, where the target's values are classes, in their order; or `regression`,
        where they are numbers, and the mean absolute error is reported in their unit.
    categories : str
        Columns that are categories, with `+` between them.
    drop : str
        Columns that are not used, with `+` between them.

    Returns
    -------
    TaskSource
        The task.

    Raises
    ------
    ValueError
        If the file or the target are missing or the kind is unknown; and from `federate`, with line and
        column, if the file is not as described.
    """
    if not (file and target):
        raise ValueError("task csv: a file and a target are needed, such as csv:file=homes.csv,target=price")
    if kind not in get_args(Kind):
        raise ValueError(f"task csv: kind must be {' or '.join(get_args(Kind))}, not {kind!r}")
    of_table = Table(Path(file), target, client, kind, _names(categories), _names(drop))
    model = "logistic" if kind == "classification" else "mlp"
    if client:
        return NaturalTask(of_table, model)
    partition = "dirichlet:alpha=0.5" if kind == "classification" else "iid"
    return DatasetTask("csv", of_table.dataset, partition, model)


@dataclass(frozen=True)
class Table:
    """Which file to read, and what its columns are; see `tabular`."""

    path: Path
    target: str
    client: str
    kind: str
    categories: tuple[str, ...]
    drop: tuple[str, ...]

    def dataset(self) -> Dataset:
        """Read the file."""
        return self.load()[0]

    def load(self) -> tuple[Dataset, list[str]]:
        """Read the file; return the data set and the client of each training example, if it has one."""
        columns = read_columns(self.path)
        for name in self.drop:
            columns.remove("drop", name)
        owners = columns.take("client", self.client) if self.client else [""] * _length(columns)
        test = _test_rows(len(owners))
        y, num_outputs, criterion = self._targets(columns, test)
        x = self._features(columns, test)
        data = Dataset((x[~test], y[~test]), (x[test], y[test]), num_outputs, criterion)
        return data, [owners[row] for row in np.flatnonzero(~test)]

    def _targets(self, columns: Columns, test: NDArray[np.bool_]) -> tuple[NDArray[Any], int, Criterion]:
        if self.kind == "regression":
            numbers = columns.numbers("target", self.target)
            mean, deviation = _moments(numbers[~test])
            return (numbers - mean) / deviation, 1, SquaredError(unit=float(deviation))
        values, classes = _distinct(columns.take("target", self.target))
        if len(values) > MOST_CLASSES:
            raise ValueError(
                f"{self.path}: column {self.target!r} has {len(values)} different values; "
                "if it has numbers to predict, set kind=regression"
            )
        if len(values) < 2:
            raise ValueError(f"{self.path}: column {self.target!r} has the same value in all rows")
        return classes, len(values), CROSS_ENTROPY

    def _features(self, columns: Columns, test: NDArray[np.bool_]) -> NDArray[np.float64]:
        parts: list[NDArray[Any]] = []
        for name in self.categories:
            values, found = _distinct(columns.take("categories", name))
            if len(values) > MOST_CLASSES:
                raise ValueError(
                    f"{self.path}: column {name!r} has {len(values)} different values; a category has at "
                    f"most {MOST_CLASSES}: drop it, or leave it a number"
                )
            parts.append(_indicators(found, len(values)))
        for name in list(columns.values):
            numbers = columns.numbers("a feature", name)
            mean, deviation = _moments(numbers[~test])
            parts.append(((numbers - mean) / deviation)[:, None])
        if not parts:
            raise ValueError(f"{self.path}: there is no column but the target and the client")
        if (size := len(test) * sum(part.shape[1] for part in parts)) > MOST_NUMBERS:
            raise ValueError(
                f"{self.path}: {size:,} numbers, more than {MOST_NUMBERS:,}; drop columns or rows"
            )
        return np.hstack(parts)


@dataclass(frozen=True)
class NaturalTask:
    """A table whose clients are named in a column."""

    table: Table
    default_model: str
    default_partition: None = None

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Give each client its rows; see `TaskSource.federate`."""
        dataset, owners = self.table.load()
        what = f"{self.table.path}: rows belong to the clients that they name"
        require_own_sizes(what, num_clients, len(owners), sizes, seed)
        names, numbers = _distinct(owners)
        if len(names) != num_clients:
            raise ValueError(
                f"{self.table.path}: column {self.table.client!r} names {len(names)} clients with training "
                f"examples; set --num-clients {len(names)}"
            )
        ends = np.cumsum(np.bincount(numbers, minlength=num_clients))
        parts = np.split(np.argsort(numbers, kind="stable"), ends[:-1])
        return PartitionedData.divide(
            dataset.train, dataset.test, dataset.num_outputs, parts, holdout, seed, dataset.criterion
        )


def _distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the different texts in order, numbers by value, and the position of each text among them."""
    names = sorted(set(texts))
    with suppress(ValueError):  # they are not all numbers
        names = sorted(names, key=float)
    positions = {name: position for position, name in enumerate(names)}
    return names, np.array([positions[text] for text in texts], np.intp)


def _indicators(found: NDArray[np.intp], count: int) -> NDArray[np.bool_]:
    """Return for each row, and each of so many values, whether the row has it."""
    return np.asarray(found[:, None] == np.arange(count))


def _printable(text: str) -> str:
    """Return the beginning of a text without what would break a line of a message."""
    return "".join(character if character.isprintable() else "?" for character in text[:40])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split("+") if name.strip())


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values.values()), []))


def _test_rows(count: int) -> NDArray[np.bool_]:
    """Choose the test examples, at least one; they do not depend on the seed of the run."""
    chosen = np.zeros(count, np.bool_)
    order = np.random.default_rng([0, *b"csv"]).permutation(count)
    chosen[order[: max(1, round(TEST_SHARE * count))]] = True
    return chosen


def _moments(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation, 1 for values that are all the same."""
    return float(np.mean(values)), float(np.std(values)) or 1.0
