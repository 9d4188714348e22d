"""Which examples each client has."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flexfl.tasks.sizes import apportion

Partition = list[NDArray[np.intp]]
"""For each client the positions of its examples in the pool; disjoint."""

PartitionFn = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], Partition]
"""(labels, sizes, rng) -> partition, for labels of shape (n,) and sizes of shape (N,)."""


def iid(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Every client's examples are a uniform draw from the whole pool.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        Class of every example in the pool.
    sizes : ndarray of int64, shape (N,)
        Examples of each client, honoured exactly.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    list of N ndarrays of intp
        Disjoint positions in the pool.

    Raises
    ------
    ValueError
        If the sizes ask for more than the pool has.
    """
    _require_fit("iid", labels, sizes)
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes))[:-1]


def classes(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    m: int = 2,
    order: str = "random",
) -> Partition:
    """Exactly m classes a client, in shards of one class each.

    The N m shards are spread over the classes as equally as possible, and their holders are drawn at
    random, or go by the client's number (`order`). Where the sizes sum to the whole pool, the holders of
    a class share all of its examples in proportion to their sizes, so equal sizes give equal shards.
    Where they sum to less, a client takes its size / m from each of its classes, and the holders of a
    class with too few examples are scaled down together: in FedLaAvg's setting N / 10 clients hold each
    digit of MNIST, and the digit 5 has fewer images than they ask for. Every shard has at least one
    example.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        Class of every example in the pool.
    sizes : ndarray of int64, shape (N,)
        Examples of each client, of which the class supplies leave small deviations.
    rng : numpy.random.Generator
        Source of the draws.
    m : int
        Classes of each client.
    order : str
        `random`, or `sorted`: of C classes, client k holds floor((k + i N) C / (N m)), i = 0..m-1.

    Returns
    -------
    list of N ndarrays of intp
        Disjoint positions in the pool.

    Raises
    ------
    ValueError
        If m is out of range, the order is unknown, a class has fewer examples than holders, there are
        fewer shards than classes, or the sizes ask for more than the pool has.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3. Yan et al., FedLaAvg, 2020, 6.1.
    """
    return _shards("classes", labels, sizes, rng, m, order)


def label(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, order: str = "random"
) -> Partition:
    """One class a client, shared by its holders in proportion to their sizes.

    The same as ``classes`` with m = 1; with Pareto sizes it is the setting of Ruan et al.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        Class of every example in the pool.
    sizes : ndarray of int64, shape (N,)
        Examples of each client, of which the class supplies leave deviations.
    rng : numpy.random.Generator
        Source of the draws.
    order : str
        `random`, or `sorted`: of C classes, client k holds floor(k C / N), as in FedLaAvg's program.

    Returns
    -------
    list of N ndarrays of intp
        Disjoint positions in the pool.

    Raises
    ------
    ValueError
        If a class has fewer examples than holders, there are fewer clients than classes, the order is
        unknown, or the sizes ask for more than the pool has.

    References
    ----------
    Ruan et al., Towards Flexible Device Participation in Federated Learning, AISTATS 2021, 5.1.
    """
    return _shards("label", labels, sizes, rng, 1, order)


def dirichlet(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, alpha: float = 0.5
) -> Partition:
    """Class proportions of each client drawn from a Dirichlet law around those of the pool.

    Client k draws q_k ~ Dir(alpha p), where p are the class proportions of the pool, then its
    examples' classes from q_k, without replacement; q_k is renormalised over the classes that have
    examples left. So the last clients are nearer to what is left than to their q_k.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        Class of every example in the pool.
    sizes : ndarray of int64, shape (N,)
        Examples of each client, honoured exactly.
    rng : numpy.random.Generator
        Source of the draws.
    alpha : float
        Concentration: towards 0 one class a client, towards infinity the proportions of the pool.

    Returns
    -------
    list of N ndarrays of intp
        Disjoint positions in the pool.

    Raises
    ------
    ValueError
        If alpha is out of range or the sizes ask for more than the pool has.

    References
    ----------
    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019.
    """
    _require_fit("dirichlet", labels, sizes)
    if not (alpha >= 1e-9 and math.isfinite(alpha)):
        raise ValueError(f"partition dirichlet: alpha must be a number of at least 1e-9, not {alpha:g}")
    pools = _shuffled_classes(labels, rng)
    left = np.array([len(pool) for pool in pools])
    concentration = alpha * left / left.sum()
    partition = []
    for size in sizes:
        # log Gamma(a) = log Gamma(a + 1) + log(U) / a stays finite where a small a gives Gamma(a) = 0.
        log_q = np.log(rng.gamma(concentration + 1)) - rng.standard_exponential(len(left)) / concentration
        counts = np.zeros_like(left)
        # Draws beyond a class's supply are rejected and drawn again from the other classes.
        while (missing := size - counts.sum()) > 0:
            open_classes = np.flatnonzero(counts < left)
            q = np.exp(log_q[open_classes] - log_q[open_classes].max())
            counts[open_classes] += rng.multinomial(missing, q / q.sum())
            counts = np.minimum(counts, left)
        left -= counts
        partition.append(np.concatenate([p[n : n + c] for p, n, c in zip(pools, left, counts, strict=True)]))
    return partition


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "classes": classes,
    "label": label,
    "dirichlet": dirichlet,
}
"""Partitions by name: ``(labels, sizes, rng, *, options)``."""


def _shards(
    name: str,
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    m: int,
    order: str,
) -> Partition:
    _require_fit(name, labels, sizes)
    if order not in ("random", "sorted"):
        raise ValueError(f"partition {name}: order is {order!r}, give random or sorted")
    pools = _shuffled_classes(labels, rng)
    num_clients, num_classes = len(sizes), len(pools)
    if not 1 <= m <= num_classes:
        raise ValueError(
            f"partition {name}: m must be between 1 and the data's {num_classes} classes, not {m}"
        )
    if num_clients * m < num_classes:
        raise ValueError(
            f"partition {name}: {num_clients} clients with {m} of the {num_classes} classes each leave "
            f"classes out; use at least {math.ceil(num_classes / m)} clients"
        )
    if order == "sorted":
        # Shards k, k + N, ... of the sorted ones: their classes are C / m >= 1 apart, so no two are the same.
        shards = np.arange(num_clients)[:, None] + num_clients * np.arange(m)
        held = shards * num_classes // (num_clients * m)
    else:
        held = _hold(num_clients, num_classes, m, rng)
    # A client's size in m whole parts, for sizes that stand for themselves.
    wanted = np.maximum(sizes[:, None] // m + (np.arange(m) < sizes[:, None] % m), 1)
    covers = sizes.sum() == len(labels)
    parts: list[list[NDArray[np.intp]]] = [[] for _ in sizes]
    for c, pool in enumerate(pools):
        holders, places = np.nonzero(held == c)
        if len(holders) > len(pool):
            raise ValueError(
                f"partition {name}: {len(holders)} clients must hold class {labels[pool[0]]}, which has only "
                f"{len(pool)} examples; use fewer clients or fewer classes a client"
            )
        counts = sizes[holders] if covers else wanted[holders, places]
        if covers or counts.sum() > len(pool):
            counts = apportion(len(pool), counts.astype(np.float64))
        for k, shard in zip(holders, np.split(pool, np.cumsum(counts))[:-1], strict=True):
            parts[k].append(shard)
    return [np.concatenate(own) for own in parts]


def _hold(num_clients: int, num_classes: int, m: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw the m distinct classes of every client, shape (num_clients, m)."""
    shards = np.full(num_classes, num_clients * m // num_classes)
    shards[rng.permutation(num_classes)[: num_clients * m % num_classes]] += 1
    held = np.empty((num_clients, m), dtype=np.intp)
    for k in range(num_clients):
        # Taking from the fullest classes never leaves a later client with two shards of one class.
        held[k] = np.lexsort((rng.random(num_classes), -shards))[:m]
        shards[held[k]] -= 1
    return held


def _shuffled_classes(labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Return the positions of each class that occurs, in random order."""
    shuffled = rng.permutation(len(labels))
    return [shuffled[labels[shuffled] == c] for c in np.unique(labels)]


def _require_fit(name: str, labels: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    if len(sizes) > len(labels):
        raise ValueError(
            f"partition {name}: {len(sizes)} clients for {len(labels)} examples, but every client needs at "
            f"least one; use at most {len(labels)} clients"
        )
    if len(sizes) == 0 or sizes.min() < 1:
        raise ValueError(f"partition {name}: there must be clients, and every size must be at least 1")
    if sizes.sum() > len(labels):
        raise ValueError(
            f"partition {name}: the clients' sizes sum to {sizes.sum()} but there are {len(labels)} "
            f"examples; use fewer clients or smaller sizes"
        )
