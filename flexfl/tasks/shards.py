"""Partitions into shards of one class each."""

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import checked
from flexfl.tasks.partition_base import Order, Partition, require_fit, shuffled_classes
from flexfl.tasks.sizes import apportion


@checked
def classes(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    m: Annotated[int, "from 1 to the number of classes"] = 2,
    order: Order = "random",
) -> Partition:
    """Exactly m classes per client, in shards of one class each.

    The N m shards are spread over the classes as evenly as possible, and assigned to the clients at
    random or by client number (`order`). If the sizes sum to the whole data set, the holders of a class
    share all of its examples in proportion to their sizes, so that equal sizes give equal shards. If they
    sum to less, a client takes size / m examples from each of its classes; where a class has too few, the
    shards of its holders are scaled down together. In FedLaAvg's setting, for example, N / 10 clients
    hold each digit of MNIST, and there are fewer images of the digit 5 than their sizes require. Each
    shard has at least one example.

    Parameters
    ----------
    labels, sizes, rng
        See `PartitionFn`.
    m
        Number of classes of each client.
    order
        `random`, or `sorted`: of C classes, client k holds floor((k + i N) C / (N m)), i = 0..m-1.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3. Yan et al., FedLaAvg, 2020, 6.1.
    """
    return _shards("classes", labels, sizes, rng, m, order)


@checked
def label(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, order: Order = "random"
) -> Partition:
    """One class per client, shared by its holders in proportion to their sizes.

    The same as ``classes`` with m = 1; with Pareto sizes it is the setting of Ruan et al.

    Parameters
    ----------
    labels, sizes, rng
        See `PartitionFn`.
    order
        `random`, or `sorted`: of C classes, client k holds floor(k C / N), as in FedLaAvg's code.

    References
    ----------
    Ruan et al., Towards Flexible Device Participation in Federated Learning, AISTATS 2021, 5.1.
    """
    return _shards("label", labels, sizes, rng, 1, order)


def _shards(
    name: str,
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    m: int,
    order: str,
) -> Partition:
    require_fit(name, labels, sizes)
    by_class = shuffled_classes(name, labels, rng)
    num_clients, num_classes = len(sizes), len(by_class)
    if not 1 <= m <= num_classes:
        raise ValueError(
            f"partition {name}: m must be between 1 and the data's {num_classes} classes, not {m}"
        )
    if num_clients * m < num_classes:
        raise ValueError(
            f"partition {name}: {m} of the {num_classes} classes for each client leave classes out with "
            f"num-clients={num_clients}; use at least {math.ceil(num_classes / m)}"
        )
    if order == "sorted":
        # Client k holds shards k, k + N, ...: their classes are C / m >= 1 apart, so no two are the same.
        shards = np.arange(num_clients)[:, None] + num_clients * np.arange(m)
        held = shards * num_classes // (num_clients * m)
    else:
        held = _draw_classes(num_clients, num_classes, m, rng)
    # Each client's size in m whole parts, used if the sizes do not sum to the whole data set.
    wanted = np.maximum(sizes[:, None] // m + (np.arange(m) < sizes[:, None] % m), 1)
    covers = sizes.sum() == len(labels)
    parts: list[list[NDArray[np.intp]]] = [[] for _ in sizes]
    for c, members in enumerate(by_class):
        holders, places = np.nonzero(held == c)
        if len(holders) > len(members):
            raise ValueError(
                f"partition {name}: {len(holders)} clients must hold class {labels[members[0]]}, which has "
                f"only {len(members)} examples; use fewer clients or fewer classes per client"
            )
        counts = sizes[holders] if covers else wanted[holders, places]
        if covers or counts.sum() > len(members):
            counts = apportion(len(members), counts.astype(np.float64))
        for k, shard in zip(holders, np.split(members, np.cumsum(counts))[:-1], strict=True):
            parts[k].append(shard)
    return [np.concatenate(own) for own in parts]


def _draw_classes(num_clients: int, num_classes: int, m: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw m distinct classes for each client, shape (num_clients, m)."""
    shards = np.full(num_classes, num_clients * m // num_classes)
    shards[rng.permutation(num_classes)[: num_clients * m % num_classes]] += 1
    held = np.empty((num_clients, m), dtype=np.intp)
    for k in range(num_clients):
        # Taking from the classes with the most shards left never forces two shards of one class on a client.
        held[k] = np.lexsort((rng.random(num_classes), -shards))[:m]
        shards[held[k]] -= 1
    return held
