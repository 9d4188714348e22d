"""A device's own CSV file: rows become what they are in the run's table, or else are used as they are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.numbers import Decimals
from fedtide.base.preprocessing import REGRESSION, Category, Feature, Numbers, Preprocessing
from fedtide.base.tables import read_table

MAX_NAMES = 50  # of columns in a message


class OwnTable(NamedTuple):
    """The inputs of a CSV file, shape (n, d), its targets, and the number of classes, if that is known.

    Inputs are float32, or the numbers of a text's tokens, int64.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    num_classes: int | None


class ClassNumbers(NamedTuple):
    """A column with the numbers of classes."""

    column: str

    def target(self, text: str, number: Decimals) -> int:
        """Return the class that a text is."""
        return class_number(text)


def class_number(text: str) -> int:
    """Return the number of a class; ValueError: the text is something else."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(
            f"{text[:40]!r} is not the number of a class, 0 or more; name the classes in their order "
            "(classes), such as cat+dog, the same on all devices"
        )
    return int(text)


def read_own_table(
    path: Path, given: Preprocessing, target: str, classes: Sequence[str], most: int
) -> OwnTable:
    """Read a CSV file of at most so many bytes of inputs.

    Parameters
    ----------
    path
        The file.
    given
        What the run's task does to its data. If that is not to a table, one column of the file is predicted,
        and the others are numbers.
    target, classes
        That column, by default the last, and the names of its classes, by default their numbers; or those of
        the run's table.
    most
        Bytes of the inputs.

    Raises
    ------
    ValueError
        The file is something else, or a row or a column does not fit; the message names it.
    OSError
        It cannot be read.
    """
    table = read_table(path)
    features: Sequence[Feature] = given.features
    predicted: Numbers | Category | ClassNumbers
    if given.target is not None:
        _check(table.names, given, target, classes)
        predicted = given.target
    else:
        features, predicted = _as_they_are(table.names, given, target, classes)
    places = [(table.names.index(column.column), column) for column in features]
    at = table.names.index(predicted.column)
    values: array[Any] = array("q" if given.vocabulary else "f")
    targets: array[Any] = array("f" if given.kind == REGRESSION else "q")
    for line, row in table.rows:
        column: Feature | ClassNumbers
        try:
            for place, column in places:
                values.extend(column.features(row[place], table.number))
            column = predicted
            targets.append(column.target(row[at], table.number))
        except ValueError as error:
            raise ValueError(f"line {line}, column {column.column!r}: {error}") from None
        if len(values) * values.itemsize > most:
            raise ValueError(f"line {line}: more than {most >> 20:,} MiB of numbers; give fewer rows")
    if not targets:
        raise ValueError("there are no rows below the header")
    y = np.frombuffer(targets, np.float32 if given.kind == REGRESSION else np.int64)
    known = len(predicted.values) if isinstance(predicted, Category) else None
    x = np.frombuffer(values, np.int64 if given.vocabulary else np.float32)
    return OwnTable(x.reshape(len(y), -1), y, known)


def _check(found: Sequence[str], given: Preprocessing, target: str, classes: Sequence[str]) -> None:
    """Raise ValueError unless the columns of a file are those of the run's table."""
    assert given.target is not None
    wanted = [given.target.column, *(feature.column for feature in given.features)]
    known = ", ".join(wanted[:MAX_NAMES])
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"there is no column {missing[0]!r}; the run's table has {known}")
    if unknown := [name for name in found if name not in (*wanted, *given.unused)]:
        raise ValueError(f"column {unknown[0]!r} is not in the run's table, which has {known}; take it out")
    if target not in ("", given.target.column):
        raise ValueError(f"target is {target!r}, and the run predicts {given.target.column!r}; leave it out")
    if classes and tuple(classes) != getattr(given.target, "values", ()):
        raise ValueError(
            f"classes {'+'.join(classes)[:200]} are not those of the run's table; leave them out"
        )


def _as_they_are(
    found: Sequence[str], given: Preprocessing, target: str, classes: Sequence[str]
) -> tuple[Sequence[Numbers], Numbers | Category | ClassNumbers]:
    """Return the columns of a file that are inputs, and the one that is predicted."""
    target = target or (found[-1] if found else "")
    others = [Numbers(name) for name in found if name != target]
    if target not in found or not others:
        listed = ", ".join(found[:MAX_NAMES])
        raise ValueError(f"there is no column {target!r} (target) beside others; columns: {listed}")
    if given.kind == REGRESSION:
        return others, Numbers(target)
    return others, Category(target, tuple(classes)) if classes else ClassNumbers(target)
