"""Partitions from a file: the rows of each client, as lists of indices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from fedtide.ground.files import parse_json, read_text
from fedtide.tasks.sizes import equal

MAX_BYTES = 512 << 20  # of a file, which takes up to twenty times as much memory while it is read


def indices(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, file: str
) -> list[NDArray[np.intp]]:
    """Lists of indices in a JSON file, one list for each client: rows of the task's training examples.

    The file holds a list of N lists, or an object with the keys "0" to "N-1". Rows are counted from 0; rows
    in no list belong to nobody.

    Parameters
    ----------
    file
        The JSON file.
    """
    place = f"partition indices: {file}"
    if not np.array_equal(sizes, equal(len(sizes), len(labels), rng)):
        raise SettingsError(f"{place}: the file says how many examples each client has; leave --sizes out")
    lists = _lists(place, _content(place, file), len(sizes))
    partition = [_rows(place, client, rows, len(labels)) for client, rows in enumerate(lists)]
    _check_disjoint(place, partition)
    return partition


def _content(place: str, file: str) -> Any:
    try:
        return parse_json(read_text(file, MAX_BYTES))
    except OSError as error:
        raise SettingsError(f"{place}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # also: not UTF-8, or a NUL in the name
        raise SettingsError(f"{place}: not as expected: {error}") from None


def _lists(place: str, content: Any, num_clients: int) -> Sequence[Any]:
    """Return one entry for each client."""
    if isinstance(content, Mapping):
        names = [str(client) for client in range(num_clients)]
        if unknown := sorted(content.keys() - set(names)):
            raise SettingsError(
                f"{place}: the key {unknown[0][:40]!r} is not a client; the keys are the clients 0 to "
                f"{num_clients - 1} (num-clients)"
            )
        if missing := [name for name in names if name not in content]:
            raise SettingsError(f"{place}: client {missing[0]} is missing; give each client its rows")
        return [content[name] for name in names]
    if not isinstance(content, list):
        raise SettingsError(f"{place}: expected a list of rows for each client, such as [[0, 2], [1]]")
    if len(content) != num_clients:
        raise SettingsError(
            f"{place}: {len(content)} lists for {num_clients} clients; set --num-clients {len(content)}"
        )
    return content


def _rows(place: str, client: int, rows: Any, num_examples: int) -> NDArray[np.intp]:
    """Check one client's list."""
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise SettingsError(f"{place}: client {client} needs a list of whole numbers, the rows that it holds")
    if not rows:
        raise SettingsError(f"{place}: client {client} has no rows, but every client needs at least one")
    if wrong := [row for row in rows if not 0 <= row < num_examples]:
        raise SettingsError(
            f"{place}: client {client} has row {str(wrong[0])[:20]}, but the training examples are rows 0 to "
            f"{num_examples - 1}"
        )
    return np.array(rows, np.intp)


def _check_disjoint(place: str, partition: Sequence[NDArray[np.intp]]) -> None:
    owner = np.repeat(np.arange(len(partition)), [len(rows) for rows in partition])
    rows = np.concatenate(partition)
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(rows[order][1:] == rows[order][:-1])
    if len(twice):
        first, second = owner[order[twice[0]]], owner[order[twice[0] + 1]]
        who = f"clients {first} and {second} both have" if first != second else f"client {first} has twice"
        raise SettingsError(
            f"{place}: {who} row {rows[order[twice[0]]]}; an example belongs to one client only"
        )
