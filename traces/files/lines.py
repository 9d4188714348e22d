"""Tables of numbers in CSV or JSON lines, read line by line, so that a file need not fit into memory."""

import json
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, NoReturn

from flexfl.ground.files import open_regular

MAX_LINE_BYTES = 65536  # far more than any line of such a table has
_MAX_SHOWN = 40  # characters of a quotation in a message


class Line(NamedTuple):
    """One line of a table: its number, counted from 1, and its values; None for a missing value."""

    number: int
    values: tuple[float | None, ...]


@contextmanager
def open_data(reader: str, path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; raise ValueError if none is given or it cannot be opened or read."""
    if not path:
        raise ValueError(f"{reader}: no file is given, set file=")
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise ValueError(f"{reader}: {path} cannot be read: {error.strerror or error}") from None


def read_lines(
    reader: str, path: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[Line]:
    """Read a table of numbers.

    CSV has a header with the column names, in the order given here (trailing optional ones may be omitted),
    and commas between values; an empty field is a missing value. JSON lines have one object per line, with
    the column names as keys. Blank lines and lines that start with ``#`` are skipped. A last line without a
    newline is torn, as by a power cut: it is left out, with a warning.

    Parameters
    ----------
    reader : str
        Name of the reader for messages, such as ``trace table``.
    path : str
        The file, UTF-8.
    required, optional : tuple of str
        Column names.

    Yields
    ------
    Line
        Finite values in the order of the columns.

    Raises
    ------
    ValueError
        If the file cannot be read or is not such a table; the message names file and line.
    """
    parser = LineParser(reader, path, required, optional)
    with open_data(reader, path) as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            line = parser.parse(raw)
            if line is not None:
                yield line
    parser.check_not_empty()


class LineParser:
    """Parses a table line by line, see `read_lines`.

    Attributes
    ----------
    number : int
        Number of the line parsed last.
    width : int
        Number of columns in a CSV file; 0 before the header, and in JSON lines.
    """

    def __init__(self, reader: str, path: str, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        self.reader, self.path, self.required, self.columns = reader, path, required, required + optional
        self.expected = ",".join(required) + "".join(f"[,{name}" for name in optional) + "]" * len(optional)
        self.number, self.width, self._kind = 0, 0, ""

    @property
    def place(self) -> str:
        """Reader, file and line, for messages about the line parsed last."""
        return f"{self.reader}: {self.path}, line {self.number}"

    def decode(self, raw: bytes) -> str | None:
        """Return the text of the next line, which includes its newline; None if it holds no values."""
        self.number += 1
        place = self.place
        if len(raw) > MAX_LINE_BYTES:
            raise ValueError(
                f"{place}: longer than {MAX_LINE_BYTES} bytes, this is not a table of {self.expected}"
            )
        if not raw.endswith(b"\n"):
            warnings.warn(
                f"{place}: no newline at the end, left out as torn; add the newline if the line is complete",
                stacklevel=4,
            )
            return None
        try:
            text = raw.decode("utf-8-sig" if self.number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{place}: not UTF-8 text, this is not a table of {self.expected}") from None
        return text if text and not text.startswith("#") else None

    def parse(self, raw: bytes) -> Line | None:
        """Parse the next line, which includes its newline; None if it holds no values."""
        text, place = self.decode(raw), self.place
        if text is None:
            return None
        if not self._kind:
            self._kind = "json" if text.startswith("{") else "csv"
            if self._kind == "csv":
                self.width = _header(place, text, self.required, self.columns, self.expected)
                return None
        values = _json(place, text, self.columns) if self._kind == "json" else _csv(place, text, self.width)
        if None in values[: len(self.required)]:
            name = self.required[values.index(None)]
            raise ValueError(f"{place}: {name} is missing, give a number")
        return Line(self.number, values + (None,) * (len(self.columns) - len(values)))

    def check_not_empty(self) -> None:
        """Raise ValueError if the file had no content."""
        if not self._kind:
            raise ValueError(
                f"{self.reader}: {self.path}: the file is empty, expected a table of {self.expected}"
            )


def whole_number(place: str, name: str, value: float, minimum: int) -> int:
    """Return a value that must be a whole number of at least `minimum`; otherwise raise ValueError."""
    if value != int(value) or value < minimum or value > 2**53:
        raise ValueError(f"{place}: {name} is {value:g}, give a whole number, {minimum} or more")
    return int(value)


def client_index(place: str, value: float, num_clients: int) -> int:
    """Return a value that must be one of the clients 0..N-1; otherwise raise ValueError."""
    client = whole_number(place, "client", value, 0)
    if client >= num_clients:
        last = num_clients - 1
        raise ValueError(
            f"{place}: client {client} does not exist, the clients are 0 to {last} (num-clients)"
        )
    return client


def parse_int(text: str) -> int | float:
    """Parse an integer of JSON; one with very many digits becomes a float, possibly infinite."""
    return int(text) if len(text) < 20 else float(text)


def _header(place: str, text: str, required: tuple[str, ...], columns: tuple[str, ...], expected: str) -> int:
    """Return the number of columns in a CSV header."""
    names = tuple(name.strip() for name in text.split(","))
    if len(names) < len(required) or names != columns[: len(names)]:
        raise ValueError(f"{place}: the header is {shorten(text)}, expected {expected}")
    return len(names)


def _csv(place: str, text: str, width: int) -> tuple[float | None, ...]:
    fields = text.split(",")
    if len(fields) != width:
        raise ValueError(
            f"{place}: {width} values expected as in the header, found {len(fields)}; separate them by commas"
        )
    return tuple([None if not field or field.isspace() else finite_number(place, field) for field in fields])


def finite_number(place: str, text: str) -> float:
    """Return the number that a text holds; raise ValueError unless it is a finite one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text or not text.isascii():  # float() accepts more than that
        raise ValueError(f"{place}: {shorten(text.strip())} is not a finite number")
    return value


def json_object(place: str, text: str, columns: Iterable[str]) -> dict[str, object]:
    """Return the object on a JSON line; raise ValueError unless there is one, without repeated keys."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"{place}: a key occurs twice in {shorten(text)}")
        return dict(pairs)

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{place}: {name} is not a finite number")

    try:
        content = json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_int=parse_int)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: invalid JSON at character {error.pos + 1}: {shorten(text)}") from None
    except RecursionError:
        raise ValueError(f"{place}: too deeply nested for a line of numbers") from None
    if not isinstance(content, dict):
        raise ValueError(f"{place}: {shorten(text)} is not an object with the keys {', '.join(columns)}")
    return content


def _json(place: str, text: str, columns: tuple[str, ...]) -> tuple[float | None, ...]:
    content = json_object(place, text, columns)
    if not content.keys() <= set(columns):
        raise ValueError(f"{place}: {shorten(text)} is not an object with the keys {', '.join(columns)}")
    values: list[float | None] = []
    for name in columns:
        value = content.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{place}: {name} is {shorten(str(value))}, give a number")
        values.append(None if value is None else finite_number(place, repr(value)))
    return tuple(values)


def shorten(text: str) -> str:
    """Return a text in quotation marks, and at most its beginning."""
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")
