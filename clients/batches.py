"""Which examples each client sees in each step, for one client or for a stacked cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.flat import as_tensor
from tasks import FederatedData, PartitionedData

Rows = NDArray[np.intp]


def batches(num_examples: int, batch_size: int, steps: int, rng: np.random.Generator) -> list[Rows]:
    """Positions of each step's examples: reshuffled passes over the data, the last batch of a pass as it is.

    The first s of E batches are the same whatever E is, so that an incomplete client did the beginning of the
    work. `batch_size` 0 takes all examples in every step.
    """
    size = min(batch_size, num_examples) or num_examples
    chosen: list[Rows] = []
    while len(chosen) < steps:
        order = rng.permutation(num_examples)
        chosen += [order[start : start + size] for start in range(0, num_examples, size)]
    return chosen[:steps]


def padded_size(chosen: Sequence[Rows]) -> int:
    """B, to which the batches of a client are padded: their size, rounded up to three binary digits.

    It depends on nothing but the client: the same sums are taken, in the same order, whoever else is in the
    cohort. The few sizes that are left let clients with different numbers of examples train together.
    """
    size = max(map(len, chosen))
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit


class Batch(NamedTuple):
    """The examples of one step of A clients, padded to the same number B.

    Attributes
    ----------
    inputs
        Shape (A, B, *input_shape).
    labels
        Shape (A, B).
    weights
        Of the examples in their client's mean loss, shape (A, B): 1 / n for n examples, 0 for padding.
    lengths
        Number n of each client's examples that are no padding, shape (A,).
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    lengths: Rows


class CohortBatches:
    """The batches of K clients; those of a step are put together when it comes.

    Parameters
    ----------
    inputs, labels
        A pool of examples, shapes (P, *input_shape) and (P,).
    chosen
        Rows of the pool for each step of each client; the client with the most steps comes first. All have
        the same `padded_size`.
    dtype
        Of `Batch.weights`.
    """

    def __init__(
        self, inputs: Tensor, labels: Tensor, chosen: Sequence[Sequence[Rows]], dtype: torch.dtype
    ) -> None:
        self.inputs, self.labels = inputs, labels
        size = padded_size(chosen[0])
        shape = (len(chosen[0]), len(chosen))
        rows, self.lengths = np.zeros((*shape, size), np.int64), np.zeros(shape, np.intp)
        for k, client in enumerate(chosen):
            lengths = [len(step) for step in client]
            self.lengths[: len(client), k] = lengths
            if min(lengths) == max(lengths):
                rows[: len(client), k, : lengths[0]] = client
            else:
                for t, step in enumerate(client):
                    rows[t, k, : len(step)] = step
        self.counts = (self.lengths > 0).sum(axis=1).tolist()  # clients that do each step
        real = np.arange(size) < self.lengths[..., None]
        self.rows = torch.from_numpy(rows).to(inputs.device)
        self.weights = torch.from_numpy(real / np.maximum(self.lengths, 1)[..., None]).to(
            inputs.device, dtype
        )

    def step(self, t: int) -> Batch:
        """Return the examples of step t of the clients that do it, the first `counts[t]`."""
        count = self.counts[t]
        rows = self.rows[t, :count]
        inputs = self.inputs.index_select(0, rows.reshape(-1)).view(*rows.shape, *self.inputs.shape[1:])
        return Batch(inputs, self.labels[rows], self.weights[t, :count], self.lengths[t, :count])


class ExamplePool:
    """Inputs and labels on the device that trains; data that are one pool are moved there once.

    Parameters
    ----------
    data
        The data of all clients.
    device
        Where to train.
    """

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        self.data, self.device = data, device
        self._pool: tuple[Tensor, Tensor] | None = None
        if isinstance(data, PartitionedData) and self._are_classes(data.pool[1]):
            self._pool = self._move(data.pool)

    def examples(self, client: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return examples of one client."""
        return self._move(self.data.examples(client, rows))

    def batches(
        self, clients: Sequence[int], chosen: Sequence[Sequence[Rows]], dtype: torch.dtype
    ) -> CohortBatches:
        """Return the batches of some clients, given as positions among each client's own examples."""
        if self._pool is not None and isinstance(self.data, PartitionedData):
            of = map(self.data.train_rows, clients)
            return CohortBatches(
                *self._pool, [[own[step] for step in c] for own, c in zip(of, chosen, strict=True)], dtype
            )
        found, rows, start = [], [], 0
        for client, steps in zip(clients, chosen, strict=True):
            used, where = np.unique(np.concatenate(steps), return_inverse=True)
            found.append(self.data.examples(client, used))
            rows.append(np.split(start + where, np.cumsum([len(step) for step in steps])[:-1]))
            start += len(used)
        inputs, labels = (np.concatenate(part) for part in zip(*found, strict=True))
        if not self._are_classes(labels):  # a GPU would not survive it
            count = self.data.num_classes
            raise ValueError(f"labels {labels.min()} to {labels.max()} where the task has {count} classes")
        return CohortBatches(*self._move((inputs, labels)), rows, dtype)

    def _are_classes(self, labels: NDArray[np.int64]) -> bool:
        return bool(labels.min(initial=0) >= 0 and labels.max(initial=0) < self.data.num_classes)

    def _move(self, examples: tuple[NDArray[Any], NDArray[Any]]) -> tuple[Tensor, Tensor]:
        inputs, labels = (as_tensor(array).to(self.device) for array in examples)
        return inputs, labels
