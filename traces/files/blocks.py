"""Large tables of numbers: many lines at a time where they are plain, one by one where they are not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.files.lines import MAX_LINE_BYTES, LineParser, open_data

BLOCK_BYTES = 1 << 20  # bytes
_PLAIN = b"0123456789+-.eE,\n"


class Block(NamedTuple):
    """Some rows that follow each other.

    Attributes
    ----------
    numbers : (n,) int64
        Numbers of the lines, counted from 1.
    values : (n, columns) float64
        NaN where a value is left out.
    """

    numbers: NDArray[np.int64]
    values: NDArray[np.float64]


def read_blocks(
    where: str, path: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[Block]:
    """Read what `traces.files.lines.read_lines` reads, and refuse what it refuses, in blocks of lines.

    Parameters
    ----------
    where, path, required, optional
        See `traces.files.lines.read_lines`.

    Yields
    ------
    Block
        At least one row; in a file with a faulty line, all rows before it first.

    Raises
    ------
    ValueError
        If the file cannot be read or is no such table; the message names file and line.
    """
    parser = LineParser(where, path, required, optional)
    width = len(parser.columns)
    with open_data(where, path) as file:
        while block := file.read(BLOCK_BYTES):
            if not block.endswith(b"\n"):
                block += file.readline(MAX_LINE_BYTES + 1)
            values = _parse_plain(block, parser.width, len(required))
            if values is None:
                yield from _parse_line_by_line(block, parser)
                continue
            numbers = np.arange(parser.number + 1, parser.number + len(values) + 1)
            parser.number += len(values)
            yield Block(numbers, np.pad(values, ((0, 0), (0, width - parser.width)), constant_values=np.nan))
    parser.check_not_empty()


def _parse_line_by_line(block: bytes, parser: LineParser) -> Iterator[Block]:
    """Read each line for itself."""
    numbers, values = [], []
    fault = None
    try:
        for raw in block.splitlines(keepends=True) if b"\r" not in block else _split(block):
            line = parser.parse(raw)
            if line is not None:
                numbers.append(line.number)
                values.append(line.values)
    except ValueError as error:
        fault = error
    if numbers:
        yield Block(np.array(numbers), np.array(values, np.float64))  # None becomes NaN
    if fault is not None:
        raise fault


def _split(block: bytes) -> Iterator[bytes]:
    """Cut after every newline, and nowhere else."""
    *whole, rest = block.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _parse_plain(block: bytes, width: int, required: int) -> NDArray[np.float64] | None:
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
    if np.diff(np.flatnonzero(ends), prepend=-1).max() > MAX_LINE_BYTES:
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
