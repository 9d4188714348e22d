"""Tasks whose examples are one data set, divided among the clients by a partition."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flexfl.tasks.data import Examples, FederatedData, PartitionedData
from flexfl.tasks.partition import PartitionFn
from flexfl.tasks.sizes import SizesFn


@dataclass(frozen=True)
class Dataset:
    """A data set with its own split into training and test examples.

    Attributes
    ----------
    train, test : Examples
        Examples to divide among the clients, and those of the common test set.
    num_classes : int
        Labels are 0 .. num_classes - 1.
    """

    train: Examples
    test: Examples
    num_classes: int


@dataclass(frozen=True)
class DatasetTask:
    """A task that loads a data set and partitions it.

    Attributes
    ----------
    name : str
        Name of the task in error messages.
    load : callable
        Returns the data set; called only when the data are needed.
    default_partition, default_model : str
        Used if the user names none.
    """

    name: str
    load: Callable[[], Dataset]
    default_partition: str = "dirichlet:alpha=0.5"
    default_model: str = "mlp"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Divide the data set among the clients; see `TaskSource.federate`."""
        if partition is None:
            raise ValueError(
                f"task {self.name}: the data are not divided among the clients; "
                f"name a partition such as {self.default_partition}"
            )
        dataset = self.load()
        labels = dataset.train[1]
        counts = sizes(num_clients, len(labels), np.random.default_rng([seed, *b"sizes"]))
        parts = partition(labels, counts, np.random.default_rng([seed, *b"partition"]))
        return PartitionedData.divide(dataset.train, dataset.test, dataset.num_classes, parts, holdout, seed)
