"""The interface of a learning task."""

from typing import Protocol

from flexfl.tasks.data import FederatedData
from flexfl.tasks.partition_base import PartitionFn
from flexfl.tasks.sizes import SizesFn


class TaskSource(Protocol):
    """A data set that can be divided among clients.

    Attributes
    ----------
    default_partition : str or None
        Partition used by default, such as ``dirichlet:alpha=0.5``; None if the data are already divided
        among the clients, so that naming a partition is an error.
    default_model : str
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
        num_clients : int
            Number of clients N >= 1.
        partition : PartitionFn or None
            Decides which examples each client gets; None if `default_partition` is None.
        sizes : SizesFn
            Decides how many examples each client gets.
        holdout : float
            Share of its examples that each client holds out of training, in [0, 1).
        seed : int
            Seed >= 0 of all random draws.

        Returns
        -------
        FederatedData
            The clients' examples and the test set.

        Raises
        ------
        ValueError
            If the data are missing or cannot be divided in this way.
        """
        ...
