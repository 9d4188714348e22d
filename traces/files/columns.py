"""Large tables of numbers: many lines at a time where they are plain, one by one where they are not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.files.rows import LONGEST, RowParser, open_data

_BLOCK = 1 << 20  # bytes
_PLAIN = b"0123456789+-.eE,\n"


class Columns(NamedTuple):
    """Some rows that follow each other.

    Attributes
    ----------
    line : (n,) int64
        Numbers of the lines, counted from 1.
    values : (n, columns) float64
        NaN where a value is left out.
    """

    line: NDArray[np.int64]
    values: NDArray[np.float64]


def read_columns(
    where: str, path: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[Columns]:
    """Read what `traces.files.rows.read_rows` reads, and refuse what it refuses, in blocks of lines.

    Parameters
    ----------
    where, path, required, optional
        See `traces.files.rows.read_rows`.

    Yields
    ------
    Columns
        At least one row; in a file with a faulty line, all rows before it first.

    Raises
    ------
    ValueError
        If the file cannot be read or is no such table; the message names file and line.
    """
    parser = RowParser(where, path, required, optional)
    width = len(parser.columns)
    with open_data(where, path) as file:
        while block := file.read(_BLOCK):
            if not block.endswith(b"\n"):
                block += file.readline(LONGEST + 1)
            values = _plain(block, parser.width, len(required))
            if values is None:
                yield from _one_by_one(block, parser)
                continue
            line = np.arange(parser.number + 1, parser.number + len(values) + 1)
            parser.number += len(values)
            yield Columns(line, np.pad(values, ((0, 0), (0, width - parser.width)), constant_values=np.nan))
    parser.end()


def _one_by_one(block: bytes, parser: RowParser) -> Iterator[Columns]:
    """Read each line for itself."""
    lines, rows = [], []
    fault = None
    try:
        for raw in block.splitlines(keepends=True) if b"\r" not in block else _lines(block):
            row = parser.row(raw)
            if row is not None:
                lines.append(row.line)
                rows.append(row.values)
    except ValueError as error:
        fault = error
    if rows:
        yield Columns(np.array(lines), np.array(rows, np.float64))  # None becomes NaN
    if fault is not None:
        raise fault


def _lines(block: bytes) -> Iterator[bytes]:
    """Cut after every newline, and nowhere else."""
    *whole, rest = block.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _plain(block: bytes, width: int, required: int) -> NDArray[np.float64] | None:
    """Read lines that are nothing but numbers and commas; None if there is anything else about them."""
    if not width or not block.endswith(b"\n") or block.translate(None, _PLAIN):
        return None
    characters = np.frombuffer(block, np.uint8)
    ends = characters == ord("\n")
    separators = characters[ends | (characters == ord(","))]
    if len(separators) % width:
        return None
    is_end = separators.reshape(-1, width) == ord("\n")
    if is_end[:, :-1].any() or not is_end[:, -1].all():
        return None
    if np.diff(np.flatnonzero(ends), prepend=-1).max() > LONGEST:
        return None
    text = block[:-1].replace(b"\n", b",")
    for _ in range(2):  # fields that are left out, of which every second one is found at a time
        text = text.replace(b",,", b",nan,")
    if text.endswith(b","):
        text += b"nan"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what NumPy says of text that is no number
            values = np.fromstring(text, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    if len(values) != len(separators) or np.isinf(values).any():
        return None
    values = values.reshape(-1, width)
    return None if np.isnan(values[:, :required]).any() else values
