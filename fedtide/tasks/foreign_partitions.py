"""Partitions made elsewhere: rows in a file, flwr-datasets, and code of your own, which is checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, CountOrZero, Range, checked
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import parse_json, read_text
from fedtide.tasks.partition import Partition, PartitionFn
from fedtide.tasks.sizes import SizesFn, require_equal

MAX_BYTES = 512 << 20  # of a file, which takes up to twenty times as much memory while it is read


def indices(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, file: str
) -> Partition:
    """Lists of indices in a JSON file, one list for each client: rows of the task's training examples.

    The file holds a list of N lists, or an object with the keys "0" to "N-1". Rows are counted from 0; rows
    in no list belong to nobody.

    Parameters
    ----------
    file
        The JSON file.
    """
    place = f"partition indices: {file}"
    require_equal(f"{place}: the file says how many examples each client has", sizes, len(labels))
    try:
        content = parse_json(read_text(file, MAX_BYTES))
    except OSError as error:
        raise SettingsError(f"{place}: cannot be read: {why(error)}") from None
    except ValueError as error:  # also: not UTF-8, or a NUL in the name
        raise SettingsError(f"{place}: not as expected: {error}") from None
    lists = _lists(place, content, len(sizes))
    for client, rows in enumerate(lists):
        if not isinstance(rows, list) or not all(type(row) is int for row in rows):
            raise SettingsError(f"{place}: client {client} needs a list of whole numbers, the rows it holds")
        if not rows:
            raise SettingsError(f"{place}: client {client} has no rows, but every client needs at least one")
    return _checked(place, lists, len(labels))


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


def _checked(place: str, parts: Sequence[Any], num_examples: int) -> Partition:
    """Return the rows of each client as arrays; SettingsError: they do not divide the examples."""
    partition = [_whole_numbers(f"{place}: client {client}", rows) for client, rows in enumerate(parts)]
    owner = np.repeat(np.arange(len(partition)), [len(rows) for rows in partition])
    rows = np.concatenate(partition)
    if len(wrong := np.flatnonzero((rows < 0) | (rows >= num_examples))):
        has = f"client {owner[wrong[0]]} has row {rows[wrong[0]]}"
        raise SettingsError(f"{place}: {has}, but the training examples are rows 0 to {num_examples - 1}")
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(rows[order][1:] == rows[order][:-1])
    if len(twice):
        first, second = owner[order[twice[0]]], owner[order[twice[0] + 1]]
        who = f"clients {first} and {second} both have" if first != second else f"client {first} has twice"
        raise SettingsError(
            f"{place}: {who} row {rows[order[twice[0]]]}; an example belongs to one client only"
        )
    return partition


@checked
def flwr_dirichlet(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    alpha: Annotated[float, Range(above=0)] = 0.5,
    min_size: CountOrZero = 10,
    balancing: bool = False,
) -> Partition:
    """Each class is shared among the clients by a draw from Dir(alpha, ..., alpha), as in NIID-Bench.

    flwr-datasets' DirichletPartitioner; the sizes of the clients follow from the draws. Li et al., Federated
    Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.

    Parameters
    ----------
    alpha
        Concentration; towards 0 a class belongs to one client.
    min_size
        Draws are repeated until every client has so many examples.
    balancing
        A client with more than the mean number of examples gets none of the next classes.
    """
    own = {"alpha": alpha, "min_partition_size": max(1, min_size), "self_balancing": balancing}
    return _divided("DirichletPartitioner", labels, sizes, rng, **own)


@checked
def flwr_pathological(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    classes: Count = 2,
    assignment: Literal["random", "deterministic", "first-deterministic"] = "random",
) -> Partition:
    """So many classes for each client, whose examples their holders share equally.

    flwr-datasets' PathologicalPartitioner; Li et al., ICDE 2022.

    Parameters
    ----------
    classes
        Classes of each client.
    assignment
        Which ones: at random, in turn, or only the first one in turn.
    """
    own = {"num_classes_per_partition": classes, "class_assignment_mode": assignment}
    return _divided("PathologicalPartitioner", labels, sizes, rng, **own)


@checked
def flwr_shard(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    shards: Count = 2,
) -> Partition:
    """The examples, sorted by class, are cut into shards, so many for each client.

    flwr-datasets' ShardPartitioner; McMahan et al., AISTATS 2017, section 3.

    Parameters
    ----------
    shards
        Shards of each client.
    """
    return _divided("ShardPartitioner", labels, sizes, rng, num_shards_per_partition=shards)


def flwr_linear(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Client k has a share of the examples proportional to k + 1, in their order (LinearPartitioner)."""
    return _divided("LinearPartitioner", labels, sizes)


def flwr_square(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Client k has a share of the examples proportional to (k + 1)^2, likewise (SquarePartitioner)."""
    return _divided("SquarePartitioner", labels, sizes)


def _divided(
    kind: str,
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator | None = None,
    **options: Any,
) -> Partition:
    """Have a partitioner divide the rows; one that depends on the labels draws by a seed from `rng`."""
    name = f"flwr-{kind.removesuffix('Partitioner').lower()}"
    require_equal(f"partition {name}: it says how many examples each client has", sizes, len(labels))
    try:
        import datasets
        from flwr_datasets import partitioner
    except ImportError:
        reason = "flwr-datasets is not installed; pip install flwr-datasets"
        raise SettingsError(f"partition {name}: {reason}") from None
    if rng is not None:
        options |= {"partition_by": "label", "seed": int(rng.integers(2**31))}
    divide = getattr(partitioner, kind)(num_partitions=len(sizes), **options)
    divide.dataset = datasets.Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of draws that are repeated
            parts = [divide.load_partition(client).with_format("numpy")[:] for client in range(len(sizes))]
    except ZeroDivisionError:
        raise SettingsError(f"partition {name}: too few examples for {len(sizes)} clients") from None
    except ValueError as error:
        raise SettingsError(f"partition {name}: {' '.join(str(error).split())}") from None
    return [np.asarray(part["row"], np.intp) for part in parts]


def checked_sizes(name: str, sizes: SizesFn) -> SizesFn:
    """Return a user's size distribution, which raises SettingsError for results that cannot be sizes."""

    def check(num_clients: int, num_examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        given = _whole_numbers(f"sizes {name}", sizes(num_clients, num_examples, rng))
        if given.shape != (num_clients,):
            raise SettingsError(f"sizes {name} gives shape {given.shape}, not ({num_clients},)")
        if given.min() < 1 or given.sum() > num_examples:
            least = f"{given.min()} to {given.max()}, together {given.sum()}"
            raise SettingsError(
                f"sizes {name} gives {least}; each must be positive, of {num_examples} in all"
            )
        return given

    return check


def checked_partition(name: str, partition: PartitionFn) -> PartitionFn:
    """Return a user's partition, which raises SettingsError for results that do not divide the examples."""

    def check(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        given = partition(labels, sizes, rng)
        if len(given) != len(sizes):
            raise SettingsError(f"partition {name} has {len(given)} parts for {len(sizes)} clients")
        return _checked(f"partition {name}", given, len(labels))

    return check


def _whole_numbers(owner: str, given: Any) -> NDArray[np.int64]:
    """Return whole numbers in one dimension as an array."""
    try:
        array = np.asarray(given)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise SettingsError(f"{owner} gives something else than whole numbers in one dimension")
    return array.astype(np.int64)
