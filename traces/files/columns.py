"""Tables whose header names the columns, in any order and among others; values are text."""

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence

from traces.files.lines import MAX_LINE_BYTES, LineParser, json_object, open_data, shorten

Row = Mapping[str, str]
"""Texts by column, without those that are empty."""


def read_columns(
    reader: str,
    path: str,
    required: Sequence[tuple[str, ...]],
    optional: Sequence[str],
    aliases: Mapping[str, str],
) -> Iterator[tuple[int, Row]]:
    """Read the columns of these names.

    CSV has a header; a text with commas stands in double quotes. JSON lines have one object per line.
    Upper and lower case are the same in names of columns; columns of other names are skipped. Blank lines,
    comments and a torn last line are treated as in `traces.files.lines.read_lines`.

    Parameters
    ----------
    reader : str
        Name of the reader for messages, such as ``trace table``.
    path : str
        The file, UTF-8.
    required : sequence of tuple of str
        Names, in lower case; of each tuple, a CSV header must have one. Which values may be missing, the
        caller decides.
    optional : sequence of str
        Further names.
    aliases : mapping of str to str
        Other names -> names.

    Yields
    ------
    number, row
        The line, counted from 1, and its values.

    Raises
    ------
    ValueError
        If the file cannot be read or is not such a table; the message names file and line.
    """
    columns = [name for names in required for name in names] + [*optional]
    parser, header = LineParser(reader, path, tuple(columns), ()), None
    with open_data(reader, path) as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            text = parser.decode(raw)
            if text is None:
                continue
            if header is None:
                if not text.startswith("{"):
                    header = _header(parser.place, text, required, columns, aliases)
                    continue
                header = []
            yield parser.number, _row(parser.place, text, header, columns, aliases)


def _header(
    place: str,
    text: str,
    required: Sequence[tuple[str, ...]],
    columns: Collection[str],
    aliases: Mapping[str, str],
) -> list[str]:
    names = _names(place, _fields(place, text), columns, aliases)
    if not all(set(group) & set(names) for group in required):
        expected = ", ".join(" or ".join(group) for group in required)
        raise ValueError(
            f"{place}: the header is {shorten(text)}, expected the columns {expected}, in any order and "
            "separated by commas"
        )
    return names


def _row(
    place: str, text: str, header: list[str], columns: Collection[str], aliases: Mapping[str, str]
) -> Row:
    if header:
        fields = _fields(place, text)
        if len(fields) != len(header):
            raise ValueError(
                f"{place}: {len(header)} values expected as in the header, found {len(fields)}; separate "
                "them by commas, and put double quotes around a text with a comma"
            )
        pairs = zip(header, fields, strict=True)
        return {name: field.strip() for name, field in pairs if name in columns and field.strip()}
    content = json_object(place, text, columns)
    names = _names(place, content, columns, aliases)
    row = {}
    for name, value in zip(names, content.values(), strict=True):
        if name in columns and value is not None:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError(f"{place}: {name} is {shorten(str(value))}, give a number or a text")
            if shown := str(value).strip():
                row[name] = shown
    return row


def _fields(place: str, text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"{place}: not a line of CSV ({error}): {shorten(text)}") from None


def _names(
    place: str, names: Collection[str], columns: Collection[str], aliases: Mapping[str, str]
) -> list[str]:
    """Return the names of the columns, without aliases; none of ours may occur twice."""
    lower = [name.strip().lower() for name in names]
    found = [aliases.get(name, name) for name in lower]
    for name in columns:
        if found.count(name) > 1:
            raise ValueError(f"{place}: there are {found.count(name)} columns {name}, leave one")
    return found
