"""What the text data sets have in common: natural clients, and examples that are made when they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from fedtide.tasks.augmentation import Augmentation
from fedtide.tasks.criteria import Criterion
from fedtide.tasks.data import Examples, PartitionedData
from fedtide.tasks.sizes import SizesFn, require_own_sizes


@dataclass(frozen=True)
class DerivedData:
    """Data that are stored in a shorter form than a model needs, and made from it when they are used.

    `derive` makes examples of stored ones, row by row; it is pickled into every worker process. `vocabulary`
    is the number of different words or characters; 0: inputs are vectors.
    """

    stored: PartitionedData
    derive: Callable[[Examples], Examples]
    vocabulary: int = 0
    test: Examples = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "test", self.derive(self.stored.test))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """See `FederatedData.input_shape`."""
        return self.test[0].shape[1:]

    @property
    def num_outputs(self) -> int:
        """See `FederatedData.num_outputs`."""
        return self.stored.num_outputs

    @property
    def criterion(self) -> Criterion:
        """See `FederatedData.criterion`."""
        return self.stored.criterion

    @property
    def augmentation(self) -> Augmentation | None:
        """Random changes of training images, which have been made."""
        return self.stored.augmentation

    @property
    def client_names(self) -> tuple[str, ...]:
        """See `client_names`."""
        return self.stored.client_names

    @property
    def sizes(self) -> NDArray[np.int64]:
        """See `FederatedData.sizes`."""
        return self.stored.sizes

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        """See `FederatedData.examples`."""
        return self.derive(self.stored.examples(client, rows))

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        """See `FederatedData.train_set`."""
        return self.derive(self.stored.train_set(clients))

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        """See `FederatedData.holdout`."""
        return self.derive(self.stored.holdout(clients))


def choose_clients(
    task: str, what: str, available: int, num_clients: int, sizes: SizesFn, seed: int
) -> list[int]:
    """Choose which natural clients take part, in ascending order.

    `what` are the clients in the plural, for messages. `sizes` must be the default, as natural clients have
    the examples that they have.
    """
    if num_clients > available:
        raise SettingsError(
            f"task {task}: there are {available} {what}; set --num-clients {available} or less"
        )
    require_own_sizes(f"task {task}: examples belong to {what}", num_clients, sizes, seed)
    rng = np.random.default_rng([seed, *b"natural"])
    return sorted(rng.choice(available, num_clients, replace=False).tolist())
