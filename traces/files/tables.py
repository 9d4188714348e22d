"""Tables with named columns: lines of plain numbers are parsed many at a time, all others one by one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.numbers import Decimals
from traces.files.lines import MAX_LINE_BYTES, decode_line, finite_number, json_object, open_data, shorten

BLOCK_BYTES = 1 << 20
INSTEAD = {"client": "device"}  # a column of names that may take the place of one of numbers
_PLAIN = b"0123456789+-.eE, \r\n"

Row = Mapping[str, str]
"""The texts in a line by column, without those that are empty."""


class Block(NamedTuple):
    """Consecutive rows: their line numbers, from 1, shape (n,); and numbers, (n, columns), NaN if missing."""

    lines: NDArray[np.int64]
    values: NDArray[np.float64]


class Table:
    """A file of CSV or JSON lines with named columns.

    CSV has a header, whose names are separated by commas or by semicolons; a text with the separator stands
    in double quotes, and an empty field is a missing value. JSON lines have one object per line. Columns come
    in any order, upper and lower case are the same in their names, and columns of other names are skipped.
    Blank lines and lines that start with ``#`` are skipped; a last line without a newline is left out, with a
    warning.

    `reader` names the reader in messages. `required` and `optional` are columns of numbers, in lower case;
    `instead` maps some to columns of texts that may take their place, and `aliases` other names to names.
    """

    def __init__(
        self,
        reader: str,
        path: str,
        required: tuple[str, ...],
        optional: tuple[str, ...] = (),
        instead: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._reader, self._path, self._required, self._columns = reader, path, required, required + optional
        self._instead, self._aliases = instead or {}, aliases or {}
        self._known = (*self._columns, *self._instead.values())
        self._line = 0  # parsed last
        self._header: list[str] | None = None  # None: not read yet; empty: JSON lines
        self._separator, self._decimals = ",", Decimals()

    def blocks(self, convert: Callable[[str, Row], Sequence[float]] | None = None) -> Iterator[Block]:
        """Read the table; all lines before an invalid one are yielded before the ValueError is raised.

        `convert` returns the numbers of a line, given its place for messages and its texts. It is not called
        for lines of plain numbers, except for the first of each block.
        """
        convert = convert or self.numbers
        with open_data(self._reader, self._path) as file:
            begun = False
            while content := file.read(BLOCK_BYTES) if begun else file.readline(MAX_LINE_BYTES + 1):
                if begun and not content.endswith(b"\n"):
                    content += file.readline(MAX_LINE_BYTES + 1)
                values = self._parse_plain(content)
                if values is None:
                    yield from self._parse_lines(content, convert)
                    begun = self._header is not None
                    continue
                yield from self._parse_lines(content[: content.index(b"\n") + 1], convert)
                if count := len(values) - 1:
                    yield Block(np.arange(self._line + 1, self._line + count + 1), values[1:])
                    self._line += count

    def _parse_lines(self, content: bytes, convert: Callable[[str, Row], Sequence[float]]) -> Iterator[Block]:
        lines, values, failure = [], [], None
        try:
            for raw in BytesIO(content):
                self._line += 1
                place = f"{self._reader}: {self._path}, line {self._line}"
                if (row := self._row(place, raw)) is not None:
                    values.append(convert(place, row))
                    lines.append(self._line)
        except ValueError as error:
            failure = error
        if lines:
            yield Block(np.array(lines), np.array(values, np.float64))
        if failure is not None:
            raise failure

    def _row(self, place: str, raw: bytes) -> Row | None:
        """Return the texts of a line; None if it has no values."""
        text = decode_line(place, raw)
        if text is None:
            return None
        if self._header is None and not text.startswith("{"):
            self._separator = max(",;", key=text.count)
            self._decimals = Decimals(self._separator == ";")
            self._header = self._names(place, _fields(place, text, self._separator))
            self._check_header(place, text, self._header)
            return None
        if self._header:
            return self._csv_row(place, _fields(place, text, self._separator), self._header)
        self._header = []
        return self._json_row(place, text)

    def _check_header(self, place: str, text: str, header: list[str]) -> None:
        missing = [c for c in self._required if c not in header and self._instead.get(c) not in header]
        if missing:
            columns = (f"{self._instead[c]} or {c}" if c in self._instead else c for c in self._required)
            raise SettingsError(
                f"{place}: the header is {shorten(text)}, expected the columns {', '.join(columns)}, in any "
                "order and separated by commas or semicolons"
            )

    def _csv_row(self, place: str, fields: list[str], header: list[str]) -> Row:
        if len(fields) != len(header):
            raise SettingsError(
                f"{place}: {len(header)} values expected as in the header, found {len(fields)}; separate "
                f"them by {self._separator!r}, and put double quotes around a text that contains it"
            )
        pairs = zip(header, fields, strict=True)
        row = {name: text for name, field in pairs if name in self._known and (text := field.strip())}
        try:
            row |= {name: self._decimals.pointed(row[name]) for name in row.keys() & {*self._columns}}
        except ValueError as error:
            raise SettingsError(f"{place}: {error}") from None
        return row

    def _json_row(self, place: str, text: str) -> Row:
        content = json_object(place, text)
        row = {}
        for name, value in zip(self._names(place, content), content.values(), strict=True):
            if name in self._known and value is not None:
                if isinstance(value, bool) or not isinstance(value, str | int | float):
                    raise SettingsError(f"{place}: {name} is {shorten(str(value))}, give a number or a text")
                if shown := str(value).strip():
                    row[name] = shown
        return row

    def _names(self, place: str, names: Iterable[str]) -> list[str]:
        """Return the names of columns, without aliases; none of ours may occur twice."""
        lower = (name.strip().lower() for name in names)
        found = [self._aliases.get(name, name) for name in lower]
        for name in self._known:
            if found.count(name) > 1:
                raise SettingsError(f"{place}: there are {found.count(name)} columns {name}, leave one")
        return found

    def numbers(self, place: str, row: Row) -> list[float]:
        """Return the numbers in a row, NaN for those that are missing."""
        for name in self._required:
            if name not in row:
                raise SettingsError(f"{place}: {name} is missing, give a number")
        return [finite_number(place, row[name]) if name in row else np.nan for name in self._columns]

    def _parse_plain(self, content: bytes) -> NDArray[np.float64] | None:
        """Parse lines of nothing but numbers and commas, shape (n, columns); None if there is more."""
        if not self._header or not set(self._header).isdisjoint(self._instead.values()):
            return None
        if not content.endswith(b"\n") or content.translate(None, _PLAIN):
            return None
        values = _parse_numbers(content, len(self._header))
        if values is None:
            return None
        missing = np.full((len(values), 1), np.nan)
        columns = [self._header.index(name) if name in self._header else -1 for name in self._columns]
        values = np.hstack([values, missing])[:, columns]
        return None if np.isnan(values[:, : len(self._required)]).any() else values


def read_numbers(
    reader: str,
    path: str,
    required: tuple[str, ...],
    optional: tuple[str, ...] = (),
    client: Callable[[str, Row], int] | None = None,
) -> Iterator[tuple[int, list[float]]]:
    """Yield the number of each line of a `Table`, and its values, NaN for those that are missing.

    `client` returns the number in the column `client`, or one for the text in a column `device`.
    """
    table = Table(reader, path, required, optional, INSTEAD if client else None)

    def convert(place: str, row: Row) -> list[float]:
        if client and not row.keys().isdisjoint(("client", "device")):
            row = {**row, "client": str(client(place, row))}
        return table.numbers(place, row)

    for block in table.blocks(convert):
        yield from zip(block.lines.tolist(), block.values.tolist(), strict=True)


def _fields(place: str, text: str, separator: str) -> list[str]:
    if '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], delimiter=separator, strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise SettingsError(f"{place}: not a line of CSV ({error}): {shorten(text)}") from None


def _parse_numbers(content: bytes, width: int) -> NDArray[np.float64] | None:
    """Parse lines of as many numbers, shape (n, width), NaN for missing ones; None if they are not all."""
    text = content.replace(b"\n,", b"\nnan,").replace(b",\n", b",nan\n")
    for _ in range(2):  # missing values; of several in a row, one pass replaces every second
        text = text.replace(b",,", b",nan,")
    if not text.strip():
        return None
    try:
        values = np.loadtxt(BytesIO(text), delimiter=",", ndmin=2, comments=None)
    except ValueError:
        return None
    complete = values.shape == (content.count(b"\n"), width)  # blank lines are left out
    return values if complete and not np.isinf(values).any() else None
