"""What all readers have in common: opening a file, its lines of text, and the numbers in them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import open_regular, parse_json
from fedtide.base.numbers import finite

MAX_LINE_BYTES = 65536  # far more than any line of a table has
_MAX_SHOWN = 40  # characters of a quotation in a message


@contextmanager
def open_data(reader: str, path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; raise ValueError if none is given or it cannot be opened or read."""
    if not path:
        raise SettingsError(f"{reader}: no file is given, set file=")
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise SettingsError(f"{reader}: {path} cannot be read: {why(error)}") from None


def decode_line(place: str, raw: bytes, most: int = MAX_LINE_BYTES) -> str | None:
    """Return the text of a line, which includes its newline; None if it is blank, a comment, or torn.

    A last line without a newline is torn, as by a power cut: it is left out, with a warning.
    """
    if len(raw) > most:
        raise SettingsError(f"{place}: longer than {most} bytes, this is another kind of file")
    if not raw.endswith(b"\n"):
        warnings.warn(
            f"{place}: no newline at the end, left out as torn; add the newline if the line is complete",
            stacklevel=3,
        )
        return None
    try:
        text = raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise SettingsError(f"{place}: not UTF-8 text, this is another kind of file") from None
    return text if text and not text.startswith("#") else None


def json_object(place: str, text: str) -> dict[str, Any]:
    """Return the object on a line of JSON."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise SettingsError(f"{place}: not JSON ({error}): {shorten(text)}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{place}: {shorten(text)} is not an object")
    return content


def finite_number(place: str, text: str) -> float:
    """Return the number that a text holds; raise ValueError unless it is a finite one."""
    if (value := finite(text)) is None:
        raise SettingsError(f"{place}: {shorten(text)} is not a finite number")
    return value


def whole_number(place: str, name: str, value: float, minimum: int) -> int:
    """Return a value that must be a whole number of at least `minimum`; otherwise raise ValueError."""
    if value != int(value) or value < minimum or value > 2**53:
        raise SettingsError(f"{place}: {name} is {value:g}, give a whole number, {minimum} or more")
    return int(value)


def client_index(place: str, value: float, num_clients: float) -> int:
    """Return a value that must be a client, 0..N-1; otherwise raise ValueError. N may be infinite."""
    client = whole_number(place, "client", value, 0)
    if client >= num_clients:
        last = num_clients - 1
        raise SettingsError(
            f"{place}: client {client} does not exist, the clients are 0 to {last} (num-clients)"
        )
    return client


def alike(place: str, what: str, before: str, kind: str) -> str:
    """Return how a file writes its clients or times; raise ValueError if it did so differently before."""
    if (before or kind) != kind:
        raise SettingsError(f"{place}: the {what} are {kind}, but {before} before; write all of them alike")
    return kind


def shorten(text: str) -> str:
    """Return a text in quotation marks, and at most its beginning."""
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")
