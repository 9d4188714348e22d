"""Sizes: how many examples each client has."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import NotNegative, Positive, checked
from fedtide.base.errors import SettingsError

SizesFn = Callable[[int, int, np.random.Generator], NDArray[np.int64]]
"""(num_clients, num_examples, rng) -> sizes of shape (num_clients,), each at least 1.

They sum to the number of examples unless the distribution says otherwise. ValueError is raised if there are
too few examples.
"""


def apportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Apportion at least n examples in proportion to n weights, at least one each.

    The largest-remainder method rounds; one of the weights must be positive.
    """
    n = len(weights)
    free = np.arange(n)
    while True:
        # A share below one example is raised to one; the others share the rest.
        quotas = weights[free] * ((total - n + len(free)) / weights[free].sum())
        enough = quotas >= 1 - 1e-9
        if enough.all():
            break
        free = free[enough]
    whole = np.floor(quotas + 1e-9)
    left = total - n + len(free) - int(whole.sum())
    whole[np.argsort(whole - quotas, kind="stable")[:left]] += 1
    counts = np.ones(n, dtype=np.int64)
    counts[free] = whole.astype(np.int64)
    return counts


def equal(num_clients: int, num_examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """All clients have the same number of examples, up to a difference of one."""
    _require_enough(num_clients, num_examples)
    return apportion(num_examples, np.ones(num_clients))


@checked
def pareto(
    num_clients: int,
    num_examples: int,
    rng: np.random.Generator,
    *,
    index: Positive = 0.5,
) -> NDArray[np.int64]:
    """Sizes in proportion to Pareto (type I) draws: few clients have most of the examples.

    Ruan et al., Towards Flexible Device Participation in Federated Learning, AISTATS 2021, 5.1.

    Parameters
    ----------
    index
        Tail index of the Pareto distribution; the smaller, the more unequal the sizes.
    """
    _require_enough(num_clients, num_examples)
    # The logarithm of a Pareto draw is exponential; taken relative to the largest, it cannot overflow.
    logs = rng.standard_exponential(num_clients)
    return apportion(num_examples, np.exp((logs - logs.max()) / index))


@checked
def normal(
    num_clients: int,
    num_examples: int,
    rng: np.random.Generator,
    *,
    mean: Positive = 60.0,
    sd: NotNegative = 10.0,
) -> NDArray[np.int64]:
    """Sizes drawn from a normal distribution, rounded, at least 1 each; they need not use all examples.

    If the expected total fits the data set and only the draw exceeds it, all sizes are scaled down to
    fit: the expected total of FedLaAvg's Normal(6e4 / N, (1e4 / N)^2) is exactly the 60,000 images of
    MNIST, so that half of all seeds would otherwise fail.

    Yan et al., Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent
    Client Availability (FedLaAvg), 2020, 6.1.

    Parameters
    ----------
    mean, sd
        Mean and standard deviation of a client's number of examples.
    """
    _require_enough(num_clients, num_examples)
    sizes = np.maximum(np.rint(rng.normal(mean, sd, num_clients)), 1)
    if num_clients * mean <= num_examples < sizes.sum():
        sizes = np.maximum(np.floor(sizes * (num_examples / sizes.sum())), 1)
    if sizes.sum() > num_examples:
        raise SettingsError(
            f"sizes normal: num-clients={num_clients} with mean={mean:g}, sd={sd:g} need {sizes.sum():.0f} "
            f"examples but there are {num_examples}; "
            f"use fewer clients or a mean below {num_examples / num_clients:g}"
        )
    return sizes.astype(np.int64)


def require_equal(what: str, sizes: NDArray[np.int64], num_examples: int) -> None:
    """Raise a SettingsError, which begins with `what`, unless the sizes are the default ones."""
    if not np.array_equal(sizes, equal(len(sizes), num_examples, np.random.default_rng(0))):
        raise SettingsError(f"{what}; leave --sizes out")


SIZES: dict[str, Callable[..., NDArray[np.int64]]] = {"equal": equal, "pareto": pareto, "normal": normal}
"""Size distributions by name: ``(num_clients, num_examples, rng, *, options)``."""


def _require_enough(num_clients: int, num_examples: int) -> None:
    if num_clients > num_examples:
        raise SettingsError(
            f"sizes: {num_clients} clients for {num_examples} examples, but every client needs at least one; "
            f"use at most {num_examples} clients"
        )
