"""Tasks: data sets that are divided among clients, by a partition or by the owners of the examples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.numbers import exact
from fedtide.base.preprocessing import Preprocessing
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, CrossEntropy
from fedtide.tasks.data import Examples, FederatedData, PartitionedData
from fedtide.tasks.partition import Partition, PartitionFn
from fedtide.tasks.sizes import SizesFn, require_equal

if TYPE_CHECKING:
    from fedtide.tasks.images import Augmentation


MAX_GROUPS = 100  # of clients
C = TypeVar("C")


class TaskSource(Protocol):
    """A data set that can be divided among clients.

    Attributes
    ----------
    default_partition
        Partition used by default, such as ``dirichlet:alpha=0.5``; None if the data are already divided
        among the clients, so that naming a partition is an error. Then a task whose examples of one client do
        not depend on those of others, as means or a vocabulary would make them, can have an attribute
        `clients_are_apart`, True: such clients need never come.
    default_model
        Model used by default.
    """

    @property
    def default_partition(self) -> str | None: ...
    @property
    def default_model(self) -> str: ...

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Divide the data among clients.

        Parameters
        ----------
        num_clients
            Number of clients N >= 1.
        partition
            Decides which examples each client gets; None if `default_partition` is None.
        sizes
            Decides how many examples each client gets.
        holdout
            Share of its examples that each client holds out of training, in [0, 1).
        seed
            Seed >= 0 of all random draws.

        Raises
        ------
        ValueError
            The data are missing or cannot be divided in this way.
        """
        ...


@dataclass(frozen=True)
class Groups:
    """The group of each training example's client, as its position among `values`."""

    what: str  # where the groups are named: begins messages
    positions: NDArray[np.integer]  # shape (n,)
    values: Sequence[Any]

    def of_clients(self, parts: Partition, names: Sequence[str]) -> tuple[str, ...]:
        """Return the group of each client, given its rows and the clients' names, if any; "" without rows.

        SettingsError: a client has several, or there are too many groups.
        """
        if len(self.values) > MAX_GROUPS:
            raise SettingsError(f"{self.what} has {len(self.values):,} groups; at most {MAX_GROUPS}")
        groups = []
        for client, rows in enumerate(parts):
            own = [str(self.values[k]).strip() for k in np.unique(self.positions[rows]).tolist()]
            if len(own) > 1:
                who, several = names[client] if names else client, ", ".join(own[:2])
                raise SettingsError(f"{self.what}: client {who} has several groups, such as {several}")
            groups.append("".join(own))
        return tuple(groups)


@dataclass(frozen=True)
class Owners:
    """The owner of each training example, one of `count` clients, of whom some may own none."""

    what: str  # where the owners are named: begins messages
    clients: NDArray[np.integer]  # shape (n,)
    count: int
    names: Sequence[str] = ()  # of the clients, if they have any
    groups: Groups | None = None  # of the clients

    def divide(self, num_clients: int, sizes: SizesFn, seed: int) -> Partition:
        """Give each client its rows; SettingsError: sizes are set, or there are more or fewer clients."""
        require_own_sizes(self.what, num_clients, sizes, seed)
        if self.count != num_clients:
            raise SettingsError(f"{self.what}, of {self.count} clients; set num-clients to {self.count}")
        return rows_of(self.clients, self.count)


class Dataset:
    """A data set with its own split into training and test examples.

    Parameters
    ----------
    train, test
        Examples to divide among the clients, and those of the common test set. As attributes they have the
        types that models train in: float32 and int64.
    num_outputs
        Numbers that a model returns for an example, or for a position of a sequence: as many as classes.
    criterion
        The loss and the metric.
    augmentation
        Random changes of training images.
    owners
        The owners of the training examples; None: a partition divides them.
    preprocessing
        What was done to the table or the images that the examples are from.

    Raises
    ------
    ValueError
        The examples do not fit together, are not finite, or are not what the criterion expects.
    """

    def __init__(
        self,
        train: Examples,
        test: Examples,
        num_outputs: int,
        criterion: Criterion = CROSS_ENTROPY,
        augmentation: Augmentation | None = None,
        owners: Owners | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.num_outputs, self.criterion, self.augmentation = num_outputs, criterion, augmentation
        self.owners, self.preprocessing = owners, preprocessing
        self.train, self.test = self._checked("training", train), self._checked("test", test)
        for kind, own, other in zip(("inputs", "targets"), self.train, self.test, strict=True):
            if own.shape[1:] != other.shape[1:] or own.dtype != other.dtype:
                raise SettingsError(
                    f"{kind} of shape {own.shape[1:]} and type {own.dtype} in the training examples, "
                    f"{other.shape[1:]} and {other.dtype} in the test examples"
                )

    def _checked(self, split: str, examples: Examples) -> Examples:
        x, y = (_converted(f"{split} examples", array) for array in examples)
        if len(x) != len(y):
            raise SettingsError(f"{split} examples: {len(x)} inputs, but {len(y)} targets")
        if not math.prod(x.shape[1:]):
            raise SettingsError(f"{split} examples: inputs of shape {x.shape[1:]}, without a number")
        if examples[1].dtype == bool and isinstance(self.criterion, CrossEntropy):
            y = y.astype(np.int64)
        try:
            self.criterion.check(y, self.num_outputs)
        except ValueError as error:
            raise SettingsError(f"{split} examples: {error}") from None
        return x, y


def _converted(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as float32 or int64, in an order in memory that PyTorch can read."""
    array = np.asarray(array)
    if np.issubdtype(array.dtype, np.integer):
        if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max:
            raise SettingsError(f"{where}: {array.max()} is beyond the integers of 64 bits; scale them")
        return np.ascontiguousarray(array, np.int64)
    if not (np.issubdtype(array.dtype, np.floating) or array.dtype == bool):
        raise SettingsError(f"{where}: arrays of type {array.dtype}; they must be numbers")
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(converted).all():
        if not np.isfinite(array).all():
            raise SettingsError(f"{where}: a number is missing or infinite")
        raise SettingsError(
            f"{where}: a number as large as {np.abs(array).max():.3g} is beyond single precision; scale them"
        )
    return converted


class DividedTask(ABC):
    """A task with one data set, which a partition divides among the clients."""

    name: str  # in messages
    default_partition: str | None = "dirichlet:alpha=0.5"
    default_model: str = "mlp"

    @abstractmethod
    def dataset(self) -> Dataset:
        """Read the data set; called only when the data are needed."""

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        data = self.dataset()
        names: Sequence[str] = ()
        groups: tuple[str, ...] = ()
        if (owners := data.owners) is not None:
            parts, names = owners.divide(num_clients, sizes, seed), owners.names
            groups = owners.groups.of_clients(parts, names) if owners.groups else ()
        elif partition is not None:
            parts = divided(data.train[1], num_clients, partition, sizes, seed)
        else:
            raise SettingsError(
                f"task {self.name}: the data are not divided among the clients; "
                f"name a partition such as {self.default_partition}"
            )
        return PartitionedData.divide(
            *(data.train, data.test, data.num_outputs, parts, holdout, seed, data.criterion, names),
            augmentation=data.augmentation,
            preprocessing=data.preprocessing,
            client_groups=groups,
        )


@dataclass(frozen=True)
class DatasetTask(DividedTask):
    """A task with the data set that a function reads, divided by a partition."""

    name: str
    load: Callable[[], Dataset]
    default_partition: str | None = DividedTask.default_partition
    default_model: str = DividedTask.default_model

    def dataset(self) -> Dataset:
        return self.load()


def divided(
    targets: NDArray[Any], num_clients: int, partition: PartitionFn, sizes: SizesFn, seed: int
) -> Partition:
    """Return the rows of each client, given the targets of all training examples."""
    counts = sizes(num_clients, len(targets), np.random.default_rng([seed, *b"sizes"]))
    return partition(targets, counts, np.random.default_rng([seed, *b"partition"]))


def counted_rows(train: NDArray[np.bool_], parts: Partition, absent: Sequence[int]) -> NDArray[np.bool_]:
    """Return the rows from which means and vocabularies are computed, a mask of shape (n,).

    They are the rows of the clients, `parts` of the training examples `train`, but for those of clients that
    never come: what nobody in the run has is not known in it.
    """
    counted, rows = np.zeros_like(train), np.flatnonzero(train)
    for client, own in enumerate(parts):
        counted[rows[own]] = client not in absent
    return counted


def rows_of(clients: NDArray[np.integer], count: int) -> Partition:
    """Return the rows of each of `count` clients, given the client of each row."""
    ends = np.cumsum(np.bincount(clients, minlength=count))
    return np.split(np.argsort(clients, kind="stable"), ends[:-1])


def consecutive(counts: Iterable[int]) -> Partition:
    """Return the rows of clients that own so many each, one client's after the other's."""
    ends = np.cumsum([*counts])
    return np.split(np.arange(ends[-1]), ends[:-1])


def default_partition(owned: bool, classes: bool) -> str | None:
    """Return the default partition: None for examples with owners, else one that suits the targets."""
    return None if owned else "dirichlet:alpha=0.5" if classes else "iid"


def distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the different texts in order, and the position of each text among them.

    If all of them are numbers, those of the same value are one, such as 1, 1.0 and 01, and shown as the
    shortest of them.
    """
    names = sorted(set(texts), key=lambda text: (-len(text), text))
    keys: Sequence[Any] = exact(names) or names
    shown = dict(zip(keys, names, strict=True))
    position = {key: k for k, key in enumerate(sorted(shown))}
    of_text = {name: position[key] for name, key in zip(names, keys, strict=True)}
    return [shown[key] for key in position], np.array([of_text[text] for text in texts], np.intp)


def choose_clients(
    task: str, what: str, there: Sequence[C], num_clients: int, sizes: SizesFn, seed: int
) -> list[C]:
    """Choose which of the natural clients take part, in their order.

    `what` are the clients in the plural, for messages. `sizes` must be the default, as natural clients have
    the examples that they have.
    """
    count = len(there)
    if num_clients > count:
        raise SettingsError(f"task {task}: there are {count} {what}; set --num-clients {count} or less")
    require_own_sizes(f"task {task}: examples belong to {what}", num_clients, sizes, seed)
    rng = np.random.default_rng([seed, *b"natural"])
    return [there[k] for k in sorted(rng.choice(count, num_clients, replace=False).tolist())]


def require_own_sizes(what: str, num_clients: int, sizes: SizesFn, seed: int) -> None:
    """Raise a SettingsError, which begins with `what`, if sizes are set for clients that have their own."""
    count = 1000 * num_clients  # any number that is enough
    require_equal(what, sizes(num_clients, count, np.random.default_rng([seed, *b"sizes"])), count)
