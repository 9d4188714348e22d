"""Partitions: which examples each client holds."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Range, Share, checked
from fedtide.base.errors import SettingsError
from fedtide.tasks.data import are_classes
from fedtide.tasks.sizes import apportion

Partition = list[NDArray[np.intp]]
"""For each client, the positions of its examples in the data set; disjoint."""

PartitionFn = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], Partition]
"""(labels, sizes, rng) -> partition.

`labels`, shape (n,), are the classes of the data set's examples; `sizes`, shape (N,), the clients' numbers of
examples, each at least 1 and of n in all, which are met exactly, or as closely as the sizes of the classes
allow.
"""

Order = Literal["random", "sorted"]


def iid(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Each client's examples are a uniform draw from the whole data set, without replacement."""
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes))[:-1]


@checked
def dirichlet(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    alpha: Annotated[float, Range(least=1e-9)] = 0.5,
    each: Literal["client", "class"] = "client",
) -> Partition:
    """Dirichlet class proportions; alpha is a client's total over all classes, or with each=class each one's.

    By default (each=client) alpha is the total over the classes, as in Hsu et al.; each=class gives alpha
    to every class, as many later papers do. With ten classes of equal size, their Dirichlet(0.1) is
    each=class,alpha=0.1, or alpha=1.

    Client k draws q_k ~ Dir(alpha p), where p are the class proportions of the data set, or with
    each=class q_k ~ Dir(alpha, ..., alpha); and then the classes of its examples from q_k, without
    replacement: q_k is renormalised over the classes that have examples left. The last clients are
    therefore closer to what is left than to their q_k. Drawing for each class how it is shared among the
    clients, as in NIID-Bench, is another partition, in which the sizes follow from the draws.

    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019.

    Parameters
    ----------
    alpha
        Concentration: towards 0 one class per client; towards infinity the proportions of the data set,
        with each=class equal ones.
    each
        `client`: alpha is the total over the classes; `class`: every class has alpha.
    """
    by_class = _shuffled_classes("dirichlet", labels, rng)
    left = np.array([len(members) for members in by_class])
    concentration = alpha * left / left.sum() if each == "client" else np.full(len(left), alpha)
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
        partition.append(
            np.concatenate([p[n : n + c] for p, n, c in zip(by_class, left, counts, strict=True)])
        )
    return partition


@checked
def similarity(
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    share: Share = 0.1,
    order: Order = "random",
) -> Partition:
    """A share of each client's examples is a uniform draw; the rest is a slice of all others sorted by class.

    With share=0 most clients have one class, or two; with share=1 the partition is `iid`. The clients' slices
    follow each other at random or by client number (`order`).

    Karimireddy et al., SCAFFOLD, ICML 2020, section 7 ("s % similarity"); with order=sorted, Crawshaw and
    Liu, NeurIPS 2024.

    Parameters
    ----------
    share
        Share of uniformly drawn examples, rounded to whole examples for each client.
    order
        `random`, or `sorted`: client k has the k-th slice.
    """
    _require_classes("similarity", labels)
    drawn = rng.permutation(len(labels))[: sizes.sum()]
    uniform = np.rint(share * sizes).astype(np.int64)
    mixed, others = np.split(drawn, [uniform.sum()])
    others = others[np.argsort(labels[others], kind="stable")]
    clients = np.arange(len(sizes)) if order == "sorted" else rng.permutation(len(sizes))
    slices = np.split(others, np.cumsum((sizes - uniform)[clients])[:-1])
    of_client = dict(zip(clients.tolist(), slices, strict=True))
    shares = np.split(mixed, np.cumsum(uniform)[:-1])
    return [np.concatenate([part, of_client[k]]) for k, part in enumerate(shares)]


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

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3. Yan et al., FedLaAvg, 2020, 6.1.

    Parameters
    ----------
    m
        Number of classes of each client.
    order
        `random`, or `sorted`: of C classes, client k holds floor((k + i N) C / (N m)), i = 0..m-1.
    """
    return _shards("classes", labels, sizes, rng, m, order)


@checked
def label(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator, *, order: Order = "random"
) -> Partition:
    """One class per client, shared by its holders in proportion to their sizes.

    The same as ``classes`` with m = 1; with Pareto sizes it is the setting of Ruan et al.

    Ruan et al., Towards Flexible Device Participation in Federated Learning, AISTATS 2021, 5.1.

    Parameters
    ----------
    order
        `random`, or `sorted`: of C classes, client k holds floor(k C / N), as in FedLaAvg's code.
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
    by_class = _shuffled_classes(name, labels, rng)
    num_clients, num_classes = len(sizes), len(by_class)
    if not 1 <= m <= num_classes:
        raise SettingsError(
            f"partition {name}: m must be between 1 and the data's {num_classes} classes, not {m}"
        )
    if num_clients * m < num_classes:
        raise SettingsError(
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
            raise SettingsError(
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


def _shuffled_classes(name: str, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Return the positions of each class that occurs, in random order."""
    _require_classes(name, labels)
    shuffled = rng.permutation(len(labels))
    return [shuffled[labels[shuffled] == c] for c in np.unique(labels)]


def _require_classes(name: str, labels: NDArray[np.int64]) -> None:
    """Raise ValueError unless the targets are classes."""
    if not are_classes(labels):
        raise SettingsError(f"partition {name}: the targets of this task are not classes; use iid")
