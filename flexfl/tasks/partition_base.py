"""What partitions have in common: their type, and the checks of what they are given."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flexfl.tasks.data import are_classes

Partition = list[NDArray[np.intp]]
"""For each client, the positions of its examples in the data set; disjoint."""

PartitionFn = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], Partition]
"""(labels, sizes, rng) -> partition.

`labels`, shape (n,), are the classes of the data set's examples; `sizes`, shape (N,), the clients' numbers of
examples, which are met exactly, or as closely as the sizes of the classes allow. ValueError is raised if the
clients' sizes sum to more than n, or a client would have no example.
"""

Order = Literal["random", "sorted"]


def shuffled_classes(name: str, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Return the positions of each class that occurs, in random order."""
    require_classes(name, labels)
    shuffled = rng.permutation(len(labels))
    return [shuffled[labels[shuffled] == c] for c in np.unique(labels)]


def require_classes(name: str, labels: NDArray[np.int64]) -> None:
    """Raise ValueError unless the targets are classes."""
    if not are_classes(labels):
        raise ValueError(f"partition {name}: the targets of this task are not classes; use iid")


def require_fit(name: str, labels: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """Raise ValueError unless the examples suffice for all clients, and each has one."""
    if len(sizes) > len(labels):
        raise ValueError(
            f"partition {name}: {len(sizes)} clients for {len(labels)} examples, but every client needs at "
            f"least one; use at most {len(labels)} clients"
        )
    if len(sizes) == 0 or sizes.min() < 1:
        raise ValueError(
            f"partition {name}: at least one client is needed, and every size must be at least 1"
        )
    if sizes.sum() > len(labels):
        raise ValueError(
            f"partition {name}: the clients' sizes sum to {sizes.sum()} but there are {len(labels)} "
            f"examples; use fewer clients or smaller sizes"
        )
