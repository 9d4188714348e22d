"""Tables: their columns as inputs, targets and owners; and the task of a CSV file."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked
from fedtide.base.errors import SettingsError, why
from fedtide.base.numbers import Decimals, exact
from fedtide.base.preprocessing import (
    CLASSIFICATION,
    REGRESSION,
    Category,
    Channels,
    Feature,
    Numbers,
    Preprocessing,
    require_value,
    scale_of,
)
from fedtide.base.tables import read_table
from fedtide.base.wording import plain
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from fedtide.tasks.data import test_rows
from fedtide.tasks.dataset import (
    Dataset,
    DividedTask,
    Groups,
    Owners,
    counted_rows,
    default_partition,
    distinct,
    rows_of,
)

# An index of rows that was stored with a table, or written to a file, read and written again
PANDAS_INDEX = re.compile("__index_level_[0-9]+__|Unnamed: [0-9]+")
MAX_CLASSES = 1000
MAX_NAMES = 50  # of columns in a message
MAX_NUMBERS = 1 << 30  # of the features, 4 GB

Kind = Literal["classification", "regression"]
C = TypeVar("C", bound="Column")


class Column(ABC):
    """A column, from which values are read; SettingsError: one is missing or of another kind."""

    name: str  # in the table
    what: str  # the beginning of messages about it

    @property
    @abstractmethod
    def is_category(self) -> bool:
        """Whether it becomes a feature of 0 or 1 for each of its values; else its numbers are features."""

    @abstractmethod
    def distinct(self) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the different values in order, and the position of each row's among them."""

    @abstractmethod
    def numbers(self) -> NDArray[np.float64]:
        """Return the finite numbers of each row, shape (n, d)."""

    def classes(self) -> tuple[NDArray[np.int64], list[Any]]:
        """Return the class of each row, and all classes in order."""
        values, found = self.distinct()
        if len(values) > MAX_CLASSES:
            reason = "if it has numbers to predict, set kind=regression"
            raise SettingsError(f"{self.what} has {len(values)} different values; {reason}")
        if len(values) < 2:
            raise SettingsError(f"{self.what} has the same value in all rows")
        numbers = self.exact(values) or []
        if real := next((number for number in numbers if number != number.to_integral_value()), None):
            reason = "set kind=regression to predict them; classes are names or whole numbers"
            raise SettingsError(f"{self.what} has numbers such as {real}; {reason}")
        return found.astype(np.int64), values

    def exact(self, values: Sequence[Any]) -> list[Decimal] | None:
        """Return the numbers that all of these values are, if they are numbers."""
        return exact([*map(str, values)])

    def indicators(self) -> tuple[NDArray[np.bool_], list[Any]]:
        """Return whether each row has each of the different values, shape (n, values), and these values."""
        values, found = self.distinct()
        if len(values) > MAX_CLASSES:
            most = f"a category has at most {MAX_CLASSES}"
            raise SettingsError(f"{self.what} has {len(values)} different values; {most}: leave it out")
        indicators: NDArray[np.bool_] = found[:, None] == np.arange(len(values))
        return indicators, values


class Table(Generic[C]):
    """The columns of a table, by name, that have not been taken yet; `names` are those of all columns.

    `what` begins messages about it, and `train` says which rows are training examples, shape (n,). If it is
    to `standardise`, numbers get mean 0 and deviation 1 over the rows that are `counted`, shape (n,): those
    of training, but for clients that never come.
    """

    def __init__(
        self, what: str, columns: Mapping[str, C], train: NDArray[np.bool_], standardise: bool = True
    ) -> None:
        self.what, self.columns, self.train, self.standardise = what, dict(columns), train, standardise
        self.names, self.counted, self._taken = tuple(columns), train, dict[str, str]()

    def take(self, option: str, name: str) -> C:
        """Remove the column that an option names, and return it."""
        if name in self._taken:
            raise SettingsError(f"{self.what}: column {name!r} ({option}) is taken by {self._taken[name]}")
        if name not in self.columns:
            known = ", ".join(plain(known, 40) for known in [*self.columns][:MAX_NAMES]) or "none"
            raise SettingsError(f"{self.what}: there is no column {name!r} ({option}); columns: {known}")
        self._taken[name] = option
        return self.columns.pop(name)

    def take_all(self, option: str, names: str) -> list[C]:
        """Remove the columns that an option names with `+` between them, and return them."""
        return [self.take(option, name.strip()) for name in names.split("+") if name.strip()]

    def rest(self) -> dict[str, C]:
        """Return the columns that no option has taken, by name, but for indices of pandas, with a warning."""
        for name in filter(PANDAS_INDEX.fullmatch, [*self.columns]):
            warnings.warn(f"{self.columns[name].what}, an index of pandas, is left out", stacklevel=3)
        return {name: column for name, column in self.columns.items() if not PANDAS_INDEX.fullmatch(name)}

    def groups(self, name: str) -> Groups | None:
        """Remove the column that names the clients' groups; return those of training examples."""
        if not name:
            return None
        column = self.take("group", name)
        values, positions = column.distinct()
        return Groups(column.what, positions[self.train], values)

    def targets(self, option: str, name: str, kind: Kind) -> tuple[NDArray[Any], Numbers | Category]:
        """Remove the column to predict; return the targets, and what they are in the table."""
        column = self.take(option, name)
        if kind == CLASSIFICATION:
            classes, values = column.classes()
            return classes, Category(name, tuple(map(str, values)))
        numbers, scale = self._scaled(column)
        if numbers.shape[1] > 1:
            raise SettingsError(f"{column.what} has {numbers.shape[1]} numbers in a row, not one to predict")
        return numbers[:, 0].astype(np.float32), scale

    def features(self, columns: Sequence[C]) -> tuple[NDArray[np.float32], tuple[Numbers | Category, ...]]:
        """Return the features of columns, shape (n, d), and what each column becomes."""
        parts: list[NDArray[Any]] = []
        found: list[Numbers | Category] = []
        for column in columns:
            if column.is_category:
                indicators, values = column.indicators()
                parts.append(indicators)
                found.append(Category(column.name, tuple(map(str, values))))
            else:
                numbers, scale = self._scaled(column)
                parts.append(numbers.astype(np.float32))
                found.append(scale)
        if not parts:
            raise SettingsError(f"{self.what}: there is no column but the target and the client")
        if (size := len(self.train) * sum(part.shape[1] for part in parts)) > MAX_NUMBERS:
            raise SettingsError(
                f"{self.what}: {size:,} numbers, more than {MAX_NUMBERS:,}; leave columns or rows out"
            )
        return np.hstack(parts, dtype=np.float32), tuple(found)

    def _scaled(self, column: C) -> tuple[NDArray[np.float64], Numbers]:
        numbers = column.numbers()
        if not self.standardise:
            return numbers, Numbers(column.name)
        try:
            scale = scale_of(column.name, numbers[self.counted])
        except ValueError as error:
            raise SettingsError(f"{column.what} {error}") from None
        return scale.scaled(numbers), scale

    def prepared(
        self, target: Numbers | Category, features: tuple[Feature, ...], pixels: Channels | None = None
    ) -> tuple[Preprocessing, int, Criterion]:
        """Return what was done to the table, the number of outputs, and the criterion.

        Without features, the inputs are from elsewhere than the table.
        """
        used = {target.column, *(feature.column for feature in features)}
        table = (target, features, tuple(name for name in self.names if name not in used)) if features else ()
        if isinstance(target, Category):
            return Preprocessing(CLASSIFICATION, 1.0, pixels, *table), len(target.values), CROSS_ENTROPY
        zero, unit = float(target.mean), float(target.deviation)  # type: ignore[arg-type] # of one number in a row
        return Preprocessing(REGRESSION, unit, pixels, *table), 1, SquaredError(unit, zero)


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
        return f"{self.path}: column {self.name!r}"

    def distinct(self) -> tuple[list[str], NDArray[np.intp]]:
        for row, text in enumerate(self.texts):
            self._read(row, text, require_value)
        return distinct(self.texts)

    def numbers(self) -> NDArray[np.float64]:
        found = np.empty(len(self.texts))
        for row, text in enumerate(self.texts):
            self._read(row, text, require_value)
            found[row] = self._read(row, text, self.number, self.hint)
        return found[:, None]

    def exact(self, values: Sequence[str]) -> list[Decimal] | None:
        try:
            return super().exact([*map(self.number.pointed, values)])
        except ValueError:  # decimal points and commas
            return None

    def _read(self, row: int, text: str, read: Callable[[str], Any], hint: str = "") -> Any:
        try:
            return read(text)
        except ValueError as error:
            where = f"{self.path}: line {self.lines[row]}, column {self.name!r}"
            raise SettingsError(f"{where}: {error}{hint}") from None


def read_columns(path: Path, standardise: bool) -> Table[TextColumn]:
    """Read a CSV file whose first line names the columns, and which has other rows; see `Table`."""
    lines = array("q")
    try:
        table = read_table(path)
        columns: list[list[str]] = [[] for _ in table.names]
        for line, row in table.rows:
            lines.append(line)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {why(error)}") from None
    if not lines:
        raise SettingsError(f"{path}: there are no rows below the header")
    found = {
        name: TextColumn(path, name, texts, lines, table.number)
        for name, texts in zip(table.names, columns, strict=True)
    }
    return Table(str(path), found, ~test_rows(len(lines)), standardise)


@dataclass(frozen=True, kw_only=True)
class Tabular(DividedTask, Checked):
    """CSV file of your own: a row for each example, a column for each feature.

    The first line names the columns, with commas, semicolons or tabs between them; with semicolons, numbers
    may have decimal commas. A column without a name, or which pandas has named
    as an index (`Unnamed: 0`), is left out. All columns but the
    target, the client and those to drop are features: numbers, which are standardised over the training
    examples of all clients, and categories, which become a feature of 0 or 1 for each of their values. A
    fifth of the rows, always the same, form the test set. Boards encode their own CSV files alike.

    Attributes
    ----------
    file
        The file.
    target
        The column to predict.
    client
        The column that says whose example a row is; clients are numbered in the order of their names, or
        numbers, and are those of a recording with the same names. Without one, a partition divides the rows.
    group
        A column that says which group of clients each client belongs to, such as a ward; no feature.
        Evaluations of clients tell their groups apart.
    kind
        `classification`: the target's values are classes, in their order, and 1, 1.0 and 01 are one of them;
        or `regression`: they are numbers, and the mean absolute error is reported in their unit.
    categories
        Columns of which each value becomes a feature of 0 or 1, with `+` between them.
    drop
        Columns to leave out, with `+` between them.
    standardise
        Whether numbers, a target included, get mean 0 and standard deviation 1; otherwise they enter as they
        are.
    """

    file: str
    target: str
    client: str = ""
    group: str = ""
    kind: Kind = "classification"
    categories: str = ""
    drop: str = ""
    standardise: bool = True
    absent: tuple[int, ...] = ()  # clients that never come

    name = "csv"

    @property
    def default_partition(self) -> str | None:  # type: ignore[override]
        """None if a column names the clients."""
        return default_partition(bool(self.client), self.kind == "classification")

    @property
    def default_model(self) -> str:  # type: ignore[override]
        return "logistic" if self.kind == "classification" else "mlp"

    def dataset(self) -> Dataset:
        table = read_columns(Path(self.file), self.standardise)
        table.take_all("drop", self.drop)
        train, owners = table.train, None
        if self.client:
            what = f"{self.file}: column {self.client!r} names the owners of training examples"
            known, clients = table.take("client", self.client).distinct()
            owners = Owners(what, clients[train], len(known), known, table.groups(self.group))
            table.counted = counted_rows(train, rows_of(owners.clients, owners.count), self.absent)
        elif self.group:
            raise SettingsError(f"{self.file}: group={self.group} is a group of clients: add client=COLUMN")
        y, target = table.targets("target", self.target, self.kind)
        categories = [replace(c, is_category=True) for c in table.take_all("categories", self.categories)]
        hint = "; if {!r} is a category, name it in categories=; drop= leaves it out"
        numbers = [replace(column, hint=hint.format(name)) for name, column in table.rest().items()]
        x, features = table.features([*categories, *numbers])
        preprocessing, num_outputs, criterion = table.prepared(target, features)
        split = (x[train], y[train]), (x[~train], y[~train])
        return Dataset(*split, num_outputs, criterion, owners=owners, preprocessing=preprocessing)
