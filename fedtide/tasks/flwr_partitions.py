"""Partitions of Flower's own library, flwr-datasets, which needs the extra `[data]`."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, CountOrZero, Range, checked
from fedtide.ground.errors import SettingsError
from fedtide.tasks.sizes import equal

Partition = list[NDArray[np.intp]]


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
    if not np.array_equal(sizes, equal(len(sizes), len(labels), np.random.default_rng(0))):
        raise SettingsError(f"partition {name}: it says how many examples each client has; leave --sizes out")
    try:
        import datasets
        from flwr_datasets import partitioner
    except ImportError:
        reason = "flwr-datasets is not installed; pip install 'fedtide[data]'"
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
