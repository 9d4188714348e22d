"""The interface of a learning task."""

from typing import Protocol

from flexfl.tasks.data import FederatedData
from flexfl.tasks.partition import PartitionFn
from flexfl.tasks.sizes import SizesFn


class TaskSource(Protocol):
    """A data set that can be divided among clients.

    Attributes
    ----------
    default_partition
        Partition used by default, such as ``dirichlet:alpha=0.5``; None if the data are already divided
        among the clients, so that naming a partition is an error.
    default_model
        Model used by default.
    """

    @property
    def default_partition(self) -> str | None: ...  # noqa: D102
    @property
    def default_model(self) -> str: ...  # noqa: D102

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
