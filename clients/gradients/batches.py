"""Which examples each client sees in each step, for one client or for a stacked cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.gradients.flat import as_tensor
from flexfl.tasks import FederatedData, PartitionedData

Rows = NDArray[np.intp]


class Steps(NamedTuple):
    """What a client's steps are done with.

    Attributes
    ----------
    rows
        Positions of the examples of all steps, one after the other.
    lengths
        How many of them each step has, shape (s,).
    different
        How many different positions there are.
    """

    rows: Rows
    lengths: Rows
    different: int

    def split(self) -> list[Rows]:
        """Return the positions of each step."""
        return np.split(self.rows, np.cumsum(self.lengths)[:-1])

    @property
    def padded(self) -> int:
        """B, to which the batches are padded: the size of the largest, rounded up to three binary digits.

        It depends on nothing but the client: the same sums are taken, in the same order, whoever else is in
        the cohort. The few sizes that are left let clients with different numbers of examples train together.
        """
        return _rounded_up(int(self.lengths.max()))

    @property
    def distinct(self) -> int:
        """U, to which the different rows are padded: rounded up as `padded` is."""
        return _rounded_up(self.different)

    def places(self) -> tuple[Rows, Rows]:
        """Return the different rows, and where among them those of all steps are."""
        rows, places = np.unique(self.rows, return_inverse=True)
        return rows, places


def _rounded_up(size: int) -> int:
    """Round up to a number of three binary digits, followed by zeros."""
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit


def batches(num_examples: int, batch_size: int, steps: int, rng: np.random.Generator) -> Steps:
    """Draw each step's examples: reshuffled passes over the data, the last batch of a pass as it is.

    The first s of E batches are the same whatever E is, so that an incomplete client did the beginning of the
    work. `batch_size` 0 takes all examples in every step.
    """
    size = min(batch_size, num_examples) or num_examples
    a_pass = -(-num_examples // size)
    passes = -(-steps // a_pass)
    rows = np.concatenate([rng.permutation(num_examples) for _ in range(passes)])
    lengths = np.full(steps, size, np.intp)
    lengths[a_pass - 1 :: a_pass] = num_examples - size * (a_pass - 1)
    total = int(lengths.sum())
    return Steps(rows[:total], lengths, min(total, num_examples))


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
        Rows of the pool for each client; the one with the most steps comes first. All are padded alike.
    dtype
        Of `Batch.weights`.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, chosen: Sequence[Steps], dtype: torch.dtype) -> None:
        self.inputs, self.chosen = inputs, chosen
        self.lengths = np.zeros((len(chosen[0].lengths), len(chosen)), np.intp)
        for k, client in enumerate(chosen):
            self.lengths[: len(client.lengths), k] = client.lengths
        self.counts = (self.lengths > 0).sum(axis=1).tolist()  # clients that do each step
        real = np.arange(chosen[0].padded) < self.lengths[..., None]
        self.rows = self._by_step([client.rows for client in chosen])
        self.labels = labels[self.rows]
        self.weights = torch.from_numpy(real / np.maximum(self.lengths, 1)[..., None]).to(
            inputs.device, dtype
        )

    def step(self, t: int) -> Batch:
        """Return the examples of step t of the clients that do it, the first `counts[t]`."""
        count = self.counts[t]
        rows = self.rows[t, :count]
        inputs = self.inputs.index_select(0, rows.reshape(-1)).view(*rows.shape, *self.inputs.shape[1:])
        return Batch(inputs, self.labels[t, :count], self.weights[t, :count], self.lengths[t, :count])

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Return the inputs of each client's examples once, and where those of each step are among them.

        Returns
        -------
        inputs
            Shape (K, U, *input_shape), where U is `Steps.distinct`, the same for all.
        places
            Shape (T, K, B), from 0 to U - 1.
        """
        rows, places = np.zeros((len(self.chosen), self.chosen[0].distinct), np.int64), []
        for k, client in enumerate(self.chosen):
            used, where = client.places()
            rows[k, : len(used)] = used
            places.append(where)
        flat = torch.from_numpy(rows).to(self.inputs.device).view(-1)
        inputs = self.inputs.index_select(0, flat).view(*rows.shape, *self.inputs.shape[1:])
        return inputs, self._by_step(places)

    def _by_step(self, values: Sequence[Rows]) -> Tensor:
        """Lay out a number for each example of each client by step, shape (T, K, B); 0 for padding."""
        size = self.chosen[0].padded
        laid_out, places = np.zeros((*self.lengths.shape, size), np.int64), np.arange(size)
        for k, (client, own) in enumerate(zip(self.chosen, values, strict=True)):
            if len(own) == len(client.lengths) * size:  # no gaps, as a rule
                laid_out[: len(client.lengths), k] = own.reshape(-1, size)
            else:
                laid_out[: len(client.lengths), k][places < client.lengths[:, None]] = own
        return torch.from_numpy(laid_out).to(self.inputs.device)


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
        if isinstance(data, PartitionedData) and self._are_classes(data.train[1]):
            self._pool = self._move(data.train)

    def examples(self, client: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return examples of one client."""
        return self._move(self.data.examples(client, rows))

    def batches(self, clients: Sequence[int], chosen: Sequence[Steps], dtype: torch.dtype) -> CohortBatches:
        """Return the batches of some clients, given as positions among each client's own examples."""
        if self._pool is not None and isinstance(self.data, PartitionedData):
            own = map(self.data.train_rows, clients)
            of_pool = [c._replace(rows=rows[c.rows]) for rows, c in zip(own, chosen, strict=True)]
            return CohortBatches(*self._pool, of_pool, dtype)
        found, rows, start = [], [], 0
        for client, wanted in zip(clients, chosen, strict=True):
            used, where = wanted.places()
            found.append(self.data.examples(client, used))
            rows.append(wanted._replace(rows=start + where))
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
