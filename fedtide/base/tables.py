"""CSV files: those that spreadsheets and pandas write are read; what they run is not written."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from io import StringIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from fedtide.base.files import open_regular
from fedtide.base.numbers import Decimals

SEPARATORS = ",;\t"
_TOLD = re.compile(f"sep=([{SEPARATORS}])", re.IGNORECASE)  # the first line, for Excel

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # what formulas begin with, the wide forms included
_NUMBER = re.compile(r"[+-]?([0-9]+\.?|[0-9]*\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
# Control characters by their pictures, such as the one of ESC; the others have none.
_CONTROL = (
    {code: 0x2400 + code for code in range(32)} | {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)
)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV whose texts, which anybody may have written, are only texts.

    Before one that a spreadsheet would take for a formula stands an apostrophe, and before one that begins
    with an apostrophe another; numbers stay numbers. Control characters are replaced by their pictures.
    """
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_written, row) for row in rows)
    return text.getvalue()


def _written(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = cell.translate(_CONTROL)
    return f"'{text}" if text.startswith((*_FORMULA, "'")) and not _NUMBER.fullmatch(text) else text


class Table(NamedTuple):
    """A CSV file: the names of its columns, its rows with the lines they begin at, and its numbers."""

    names: list[str]
    rows: Iterator[tuple[int, list[str]]]
    number: Decimals


def read_table(path: str | Path) -> Table:
    """Read a CSV file row by row; values are stripped.

    The first line names the columns, and says which of `SEPARATORS` separates values; above it may stand
    Excel's `sep=;`. A value that contains the separator, or a line break, stands in double quotes. Rows
    without any value are left out; so is a column without a name, as pandas writes its index, with a warning
    if it has values.

    OSError is raised as by `open_regular`. ValueError, which names the line, also while rows are read: a
    column is named twice, a row has more or fewer values than there are columns, or the file is something
    else.
    """
    rows = _rows(path)
    first, (separator, *names) = next(rows, (1, [","]))
    named = [column for column, name in enumerate(names) if name]
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise ValueError(f"line {first}: two columns are named {twice[0][:40]!r}")

    def of_named() -> Iterator[tuple[int, list[str]]]:
        unnamed = [column for column, name in enumerate(names) if not name]
        for line, row in rows:
            if len(row) != len(names):
                raise ValueError(f"line {line}: {len(row)} values for {len(names)} columns")
            if (used := next((column for column in unnamed if row[column]), None)) is not None:
                warnings.warn(f"{path}: column {used + 1} has no name, and is left out", stacklevel=2)
                unnamed = []
            yield line, [row[column] for column in named]

    return Table([names[column] for column in named], of_named(), Decimals(separator == ";"))


def _rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that have a value, and before the values of the first one the separator."""
    with open_regular(path) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        line = 1
        try:
            head = _head(text)
            separator, above = max(SEPARATORS, key=lambda mark: _width(head[-1:], mark)), 0
            if told := _TOLD.fullmatch("".join(head[-1:]).strip(" \r\n")):
                head, separator, above = [], told[1], len(head)
                line = above + 1
            reader = csv.reader(
                chain(head, text), delimiter=separator, strict=True, skipinitialspace=separator != "\t"
            )
            first = [separator]
            for row in reader:
                values = [value.strip() for value in row]
                if any(values):
                    yield line, first + values
                    first = []
                line = above + reader.line_num + 1
        except UnicodeDecodeError:
            raise ValueError(
                f"line {_bad_line(path)} is not UTF-8 text; save the file as CSV in UTF-8"
            ) from None
        except csv.Error as error:
            raise ValueError(f"line {line}: {error}") from None


def _width(line: list[str], separator: str) -> int:
    """Return how many values a line has, as far as it can be read."""
    try:
        return len(next(csv.reader(line, delimiter=separator), []))
    except csv.Error:
        return 0


def _head(text: TextIO) -> list[str]:
    """Return the lines up to the first that is not blank."""
    head = []
    for line in text:
        head.append(line)
        if line.strip():
            break
    return head


def _bad_line(path: str | Path) -> int:
    """Return the first line that is not UTF-8."""
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1
