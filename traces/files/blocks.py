"""Large tables of numbers: plain lines are parsed many at a time, all others one by one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.files.lines import MAX_LINE_BYTES, LineParser, open_data

BLOCK_BYTES = 1 << 20
_PLAIN = b"0123456789+-.eE,\n"


class Block(NamedTuple):
    """Consecutive lines of a table; blank lines and comments are left out.

    Attributes
    ----------
    numbers : (n,) int64
        Line numbers, counted from 1.
    values : (n, columns) float64
        NaN for a missing value.
    """

    numbers: NDArray[np.int64]
    values: NDArray[np.float64]


def read_blocks(
    reader: str, path: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[Block]:
    """Read a table of numbers as `traces.files.lines.read_lines` does, in blocks of lines.

    Parameters
    ----------
    reader, path, required, optional
        See `traces.files.lines.read_lines`.

    Yields
    ------
    Block
        At least one line. All lines before an invalid one are yielded before the error is raised.

    Raises
    ------
    ValueError
        If the file cannot be read or is not such a table; the message names file and line.
    """
    parser = LineParser(reader, path, required, optional)
    width = len(parser.columns)
    with open_data(reader, path) as file:
        while content := file.read(BLOCK_BYTES):
            if not content.endswith(b"\n"):
                content += file.readline(MAX_LINE_BYTES + 1)
            values = _parse_plain(content, parser.width, len(required))
            if values is None:
                yield from _parse_line_by_line(content, parser)
                continue
            numbers = np.arange(parser.number + 1, parser.number + len(values) + 1)
            parser.number += len(values)
            yield Block(numbers, np.pad(values, ((0, 0), (0, width - parser.width)), constant_values=np.nan))
    parser.check_not_empty()


def _parse_line_by_line(content: bytes, parser: LineParser) -> Iterator[Block]:
    """Parse one line after the other."""
    numbers, values = [], []
    failure = None
    try:
        for raw in BytesIO(content):
            line = parser.parse(raw)
            if line is not None:
                numbers.append(line.number)
                values.append(line.values)
    except ValueError as error:
        failure = error
    if numbers:
        yield Block(np.array(numbers), np.array(values, np.float64))  # None becomes NaN
    if failure is not None:
        raise failure


def _parse_plain(content: bytes, width: int, required: int) -> NDArray[np.float64] | None:
    """Parse lines of nothing but numbers and commas, shape (n, width); None if there is anything else."""
    if not width or not content.endswith(b"\n") or content.translate(None, _PLAIN):
        return None
    characters = np.frombuffer(content, np.uint8)
    ends = characters == ord("\n")
    separators = characters[ends | (characters == ord(","))]
    if len(separators) % width:
        return None
    is_end = separators.reshape(-1, width) == ord("\n")
    if is_end[:, :-1].any() or not is_end[:, -1].all():
        return None
    if np.diff(np.flatnonzero(ends), prepend=-1).max() > MAX_LINE_BYTES:
        return None
    text = content[:-1].replace(b"\n", b",")
    for _ in range(2):  # missing values; of several in a row, one pass replaces every second
        text = text.replace(b",,", b",nan,")
    if text.endswith(b","):
        text += b"nan"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # NumPy on text that is not a number
            values = np.fromstring(text, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    if len(values) != len(separators) or np.isinf(values).any():
        return None
    values = values.reshape(-1, width)
    return None if np.isnan(values[:, :required]).any() else values
