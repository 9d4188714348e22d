"""Partitions: which examples each client holds."""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import Range, Share, checked
from flexfl.tasks.indices import indices
from flexfl.tasks.partition_base import (
    Order,
    Partition,
    require_classes,
    require_fit,
    shuffled_classes,
)
from flexfl.tasks.shards import classes, label


def iid(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Each client's examples are a uniform draw from the whole data set, without replacement."""
    require_fit("iid", labels, sizes)
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

    Parameters
    ----------
    labels, sizes, rng
        See `PartitionFn`.
    alpha
        Concentration: towards 0 one class per client; towards infinity the proportions of the data set,
        with each=class equal ones.
    each
        `client`: alpha is the total over the classes; `class`: every class has alpha.

    References
    ----------
    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019.
    """
    require_fit("dirichlet", labels, sizes)
    by_class = shuffled_classes("dirichlet", labels, rng)
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

    Parameters
    ----------
    labels, sizes, rng
        See `PartitionFn`.
    share
        Share of uniformly drawn examples, rounded to whole examples for each client.
    order
        `random`, or `sorted`: client k has the k-th slice.

    References
    ----------
    Karimireddy et al., SCAFFOLD, ICML 2020, section 7 ("s % similarity"); with order=sorted, Crawshaw and
    Liu, NeurIPS 2024.
    """
    require_fit("similarity", labels, sizes)
    require_classes("similarity", labels)
    drawn = rng.permutation(len(labels))[: sizes.sum()]
    uniform = np.rint(share * sizes).astype(np.int64)
    mixed, others = np.split(drawn, [uniform.sum()])
    others = others[np.argsort(labels[others], kind="stable")]
    clients = np.arange(len(sizes)) if order == "sorted" else rng.permutation(len(sizes))
    slices = np.split(others, np.cumsum((sizes - uniform)[clients])[:-1])
    of_client = dict(zip(clients.tolist(), slices, strict=True))
    shares = np.split(mixed, np.cumsum(uniform)[:-1])
    return [np.concatenate([part, of_client[k]]) for k, part in enumerate(shares)]


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "classes": classes,
    "label": label,
    "dirichlet": dirichlet,
    "similarity": similarity,
    "indices": indices,
}
"""Partitions by name: ``(labels, sizes, rng, *, options)``."""
