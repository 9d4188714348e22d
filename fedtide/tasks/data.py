"""A run's view of a data set: the examples of each client, and the common test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.preprocessing import CLASSIFICATION, REGRESSION, Preprocessing
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, CrossEntropy, SquaredError

if TYPE_CHECKING:
    from fedtide.tasks.images import Augmentation

TEST_SHARE = 0.2  # of the examples of a data set without a split of its own

Examples = tuple[NDArray[Any], NDArray[Any]]
"""Inputs of shape (n, *input_shape), and targets of shape (n, ...); classes are numbers of shape (n,)."""


class FederatedData(Protocol):
    """Examples divided among N clients.

    Instances are pickled into every worker process, where the arrays may be read-only.

    Attributes
    ----------
    input_shape
        Shape of one input.
    num_outputs
        Numbers that a model returns for an example, or for a position of a sequence: as many as classes.
    criterion
        The loss and the metric.
    sizes
        Number of training examples of each client, without the held-out ones, shape (N,).
    test
        The data set's own test split, which belongs to no client.
    """

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def criterion(self) -> Criterion: ...
    @property
    def sizes(self) -> NDArray[np.int64]: ...
    @property
    def test(self) -> Examples: ...

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        """Return fresh, writable copies of a client's training examples, 0 .. sizes[client] - 1.

        IndexError: a row is not one of them.
        """
        ...

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        """Return all training examples of these clients, concatenated."""
        ...

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        """Return the held-out examples of these clients, concatenated; ValueError: nothing is held out."""
        ...


@dataclass(frozen=True)
class PartitionedData:
    """The training split of a data set, and which of its examples belong to which client.

    The partition is stored as one index array with offsets, so that a client costs only a few numbers.
    The rows of client k are ``order[offsets[k]:offsets[k + 1]]``, its held-out examples last.

    With `derive`, `train` stores the examples in a shorter form, such as the positions of sequences in a
    text, and `derive` makes examples of these rows whenever they are used. `vocabulary` is the number of
    different words or characters in texts; 0: inputs are vectors. `preprocessing` is what was done to a
    table or to images.
    """

    train: Examples
    test: Examples
    num_outputs: int
    order: NDArray[np.intp]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    holdout_share: float
    criterion: Criterion = CROSS_ENTROPY
    augmentation: Augmentation | None = None
    client_names: tuple[str, ...] = ()  # () where a partition has made the clients
    derive: Callable[[Examples], Examples] | None = None
    vocabulary: int = 0
    preprocessing: Preprocessing | None = None
    client_groups: tuple[str, ...] = ()  # () where the clients have none

    @classmethod
    def divide(
        cls,
        train: Examples,
        test: Examples,
        num_outputs: int,
        parts: list[NDArray[np.intp]],
        holdout_share: float,
        seed: int,
        criterion: Criterion = CROSS_ENTROPY,
        client_names: Sequence[str] = (),
        derive: Callable[[Examples], Examples] | None = None,
        **others: Any,
    ) -> PartitionedData:
        """Assign each client its part, rows of `train`, and hold out a share of it, drawn by the seed.

        `others` are further attributes.
        """
        totals = np.array([len(part) for part in parts], dtype=np.int64)
        sizes = totals - holdout_counts(totals, holdout_share)
        order = np.concatenate(parts)
        if holdout_share > 0:
            # Sorting random keys within each client shuffles every part at once.
            keys = np.random.default_rng([seed, *b"holdout"]).random(len(order))
            order = order[np.lexsort((keys, np.repeat(np.arange(len(parts)), totals)))]
        offsets = np.concatenate([[0], np.cumsum(totals)])
        test = derive(test) if derive else test
        stored = (train, test, num_outputs, order, offsets, sizes, holdout_share, criterion)
        return cls(*stored, client_names=tuple(client_names), derive=derive, **others)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.test[0].shape[1:]

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        return self._take(self.train_rows(client)[rows])

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        return self._take(np.concatenate([self.order[:0], *(self.train_rows(int(k)) for k in clients)]))

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        require_holdout(self.holdout_share)
        parts = (self.order[self.offsets[k] + self.sizes[k] : self.offsets[k + 1]] for k in clients)
        return self._take(np.concatenate([self.order[:0], *parts]))

    def train_rows(self, client: int) -> NDArray[np.intp]:
        """Return the rows of `train` that are a client's training examples."""
        start = self.offsets[client]
        return self.order[start : start + self.sizes[client]]

    def without(self, clients: Sequence[int]) -> PartitionedData:
        """Return the data without the examples of some clients; the test split stays."""
        totals = np.diff(self.offsets)
        kept = ~np.isin(np.repeat(np.arange(len(totals)), totals), clients)
        none = np.isin(np.arange(len(totals)), clients)
        offsets = np.concatenate([[0], np.cumsum(np.where(none, 0, totals))])
        sizes = np.where(none, 0, self.sizes)
        return replace(self, order=self.order[kept], offsets=offsets, sizes=sizes)

    def _take(self, rows: NDArray[np.intp]) -> Examples:
        x, y = self.train
        found = x[rows], y[rows]
        return self.derive(found) if self.derive else found


def client_names(data: FederatedData) -> tuple[str, ...]:
    """Return the data's names of the clients, N of them; () if the clients have none."""
    return tuple(getattr(data, "client_names", ()))


def client_groups(data: FederatedData) -> tuple[str, ...]:
    """Return the group of each client, N texts, "" where it is not known; () if the clients have none."""
    return tuple(getattr(data, "client_groups", ()))


def preprocessing_of(data: FederatedData) -> Preprocessing:
    """Return what was done to the data, as far as it is known: of any, what kind of targets they have."""
    if (known := getattr(data, "preprocessing", None)) is not None:
        return known  # type: ignore[no-any-return]
    if type(criterion := data.criterion) is SquaredError:
        return Preprocessing(REGRESSION, criterion.unit)
    return Preprocessing(CLASSIFICATION if type(criterion) is CrossEntropy else type(criterion).__name__)


def are_classes(targets: NDArray[Any]) -> bool:
    """Return whether each example has one target, the number of a class."""
    return targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer)


def some_examples(data: FederatedData, count: int = 8) -> Examples:
    """Return the first examples of a client, as many as there are up to `count`, to compare gradients with.

    It is the first client whose examples can be had and suit the task: what is wrong with those of another
    shows when it trains. Zeros, if there is none.
    """
    for client in np.flatnonzero(data.sizes)[:10].tolist():
        with suppress(Exception):
            x, y = data.examples(client, np.arange(min(count, data.sizes[client])))
            data.criterion.check(y, data.num_outputs)
            if np.isfinite(x).all() and np.isfinite(y).all():
                return x, y
    x, y = (np.zeros((2, *array.shape[1:]), array.dtype) for array in data.test)
    return x, y


def test_rows(count: int) -> NDArray[np.bool_]:
    """Choose which of so many examples are test examples, at least one; the run's seed does not matter."""
    chosen = np.zeros(count, np.bool_)
    order = np.random.default_rng([0, *b"csv"]).permutation(count)
    chosen[order[: max(1, round(TEST_SHARE * count))]] = True
    return chosen


def holdout_counts(totals: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Return how many of its examples each client holds out: of n examples and a share h, floor(h n).

    They are at least one if h > 0 and n >= 2, and at most n - 1.
    """
    if not 0 <= share < 1:
        raise SettingsError(f"holdout: the share must be in [0, 1), not {share:g}")
    if share == 0:
        return np.zeros_like(totals)
    # 0.29 * 100 is 28.999... in floating point and must still hold out 29.
    counts: NDArray[np.int64] = np.floor(share * totals + 1e-9).astype(np.int64)
    return np.clip(counts, totals >= 2, np.maximum(totals - 1, 0))


def require_holdout(share: float) -> None:
    """Raise a ValueError if no examples are held out."""
    if share == 0:
        raise SettingsError("holdout: no examples are held out; set a holdout share above 0")
