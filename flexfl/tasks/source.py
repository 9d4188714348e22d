"""What a learning task offers to a run."""

from typing import Protocol

from flexfl.tasks.data import FederatedData
from flexfl.tasks.partition import PartitionFn
from flexfl.tasks.sizes import SizesFn


class TaskSource(Protocol):
    """A data set that can be divided among clients.

    Attributes
    ----------
    default_partition : str or None
        Partition to use where none is named, such as ``dirichlet:alpha=0.5``. None: the data come
        divided among the clients, and a partition is refused.
    default_model : str
        Model to use where none is named.
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
            Which examples a client gets; None where `default_partition` is None.
        sizes : SizesFn
            How many examples a client gets.
        holdout : float
            Share of its examples that each client holds out of training, in [0, 1).
        seed : int
            Seed >= 0 of every draw.

        Returns
        -------
        FederatedData
            The clients' examples and the test set.

        Raises
        ------
        ValueError
            If the data are not there or cannot be divided in this way.
        """
        ...
