"""What the text data sets have in common: natural clients, and examples that are made when they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flexfl.tasks.criteria import Criterion
from flexfl.tasks.data import Examples, PartitionedData
from flexfl.tasks.sizes import SizesFn, require_own_sizes


@dataclass(frozen=True)
class DerivedData:
    """Data that are stored in a shorter form than a model needs, and made from it when they are used.

    Attributes
    ----------
    stored : PartitionedData
        The clients' examples in the shorter form.
    derive : callable
        Makes examples of stored ones, row by row; it is pickled into every worker process.
    vocabulary : int
        How many different words or characters there are; 0: inputs are vectors.
    test : Examples
        The derived test examples.
    """

    stored: PartitionedData
    derive: Callable[[Examples], Examples]
    vocabulary: int = 0
    test: Examples = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "test", self.derive(self.stored.test))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.test[0].shape[1:]

    @property
    def num_outputs(self) -> int:
        """Numbers that a model returns for an example."""
        return self.stored.num_outputs

    @property
    def criterion(self) -> Criterion:
        """The loss and the metric."""
        return self.stored.criterion

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of training examples of each client, without the held-out ones."""
        return self.stored.sizes

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        """Return fresh, writable copies of a client's training examples."""
        return self.derive(self.stored.examples(client, rows))

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        """Return all training examples of these clients, concatenated."""
        return self.derive(self.stored.train_set(clients))

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        """Return the held-out examples of these clients, concatenated."""
        return self.derive(self.stored.holdout(clients))


def choose_clients(
    task: str, what: str, available: int, num_clients: int, sizes: SizesFn, seed: int
) -> list[int]:
    """Choose which natural clients take part, in ascending order; with all of them there is no choice.

    Parameters
    ----------
    task, what : str
        Its name, and what a client is, in the plural, for messages.
    available : int
        How many there are.
    num_clients : int
        How many are wanted.
    sizes : SizesFn
        Has to be the default, as natural clients have the examples that they have.
    seed : int
        Determines the choice.

    Raises
    ------
    ValueError
        There are too few, or `sizes` is set.
    """
    if num_clients > available:
        raise ValueError(f"task {task}: there are {available} {what}; set --num-clients {available} or less")
    require_own_sizes(f"task {task}: examples belong to {what}", num_clients, 1000 * num_clients, sizes, seed)
    rng = np.random.default_rng([seed, *b"natural"])
    return sorted(rng.choice(available, num_clients, replace=False).tolist())
