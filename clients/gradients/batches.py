"""Which examples each local step of a client uses, and the batches of a cohort as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clients.draws import BatchIndices, Indices
from clients.gradients.flat import as_tensor
from fedtide.tasks import CROSS_ENTROPY, Augmentation, Criterion, FederatedData, PartitionedData


class Batch(NamedTuple):
    """The examples of one step of A clients, padded to the same length B."""

    inputs: Tensor  # (A, B, *input_shape)
    targets: Tensor  # (A, B, ...)
    weights: Tensor  # (A, B), of each example in its client's mean loss: mostly 1 / n, and 0 for padding
    lengths: NDArray[np.intp]  # (A,), the number n of each client's examples
    seeds: Sequence[int] | None = None  # of what each client's model draws; None: it draws nothing

    def seed(self, k: int) -> int | None:
        """Return the seed of a client, if there are any."""
        return self.seeds[k] if self.seeds else None


class CohortBatches:
    """The batches of K clients; the inputs of each step are gathered only when it is done.

    `inputs`, (P, *input_shape), and `targets`, (P, ...), are examples of all clients, into which `clients`
    are indices. All clients have the same `padded_length`, and the one with the most steps comes first: the
    first `counts[t]` do step t.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        clients: Sequence[BatchIndices],
        dtype: torch.dtype,
        augmentation: Augmentation | None = None,
        criterion: Criterion = CROSS_ENTROPY,
    ) -> None:
        self.inputs, self.clients, self.augmentation = inputs, clients, augmentation
        self.criterion = criterion
        steps = [len(client.lengths) for client in clients]
        self.lengths = _padded([client.lengths for client in clients], steps, steps[0]).T.copy()
        self.counts = (self.lengths > 0).sum(axis=1).tolist()
        self.indices = self._by_step([client.indices for client in clients])
        self.targets = targets[self.indices]
        changes = [client.changes for client in clients if client.changes is not None]
        self.changes = self._by_step(changes) if changes else None
        self.dtype = dtype

    @cached_property
    def weights(self) -> Tensor:
        """`Batch.weights` of each step, shape (T, K, B)."""
        terms = np.arange(self.indices.shape[2]) < self.lengths[..., None]
        if (counts := self.criterion.counts(self.targets.flatten(0, 2))) is not None:
            terms = terms * counts.view(terms.shape).cpu().numpy()
        sums = terms.sum(axis=-1, keepdims=True)
        weights = torch.from_numpy(terms / np.where(sums > 0, sums, 1))
        return weights.to(self.inputs.device, self.dtype)

    def step(self, t: int) -> Batch:
        """Return the batches of step t for the clients that do it, the first `counts[t]`."""
        count = self.counts[t]
        indices = self.indices[t, :count]
        inputs = self.inputs.index_select(0, indices.reshape(-1))
        if self.augmentation is not None and self.changes is not None:
            inputs = self.augmentation.apply(inputs, self.changes[t, :count].reshape(-1))
        inputs = inputs.view(*indices.shape, *self.inputs.shape[1:])
        seeds = [int(client.seeds[t]) for client in self.clients[:count] if client.seeds is not None]
        lengths = self.lengths[t, :count]
        return Batch(inputs, self.targets[t, :count], self.weights[t, :count], lengths, seeds or None)

    def _by_step(self, values: Sequence[Indices]) -> Tensor:
        """Arrange one number per example of each client by step, shape (T, K, B), padded with 0."""
        padded = _padded(values, self.lengths.T, self.clients[0].padded_length)
        return torch.from_numpy(padded.swapaxes(0, 1).copy()).to(self.inputs.device)


def _padded(parts: Sequence[NDArray[Any]], lengths: ArrayLike, width: int) -> NDArray[np.int64]:
    """Divide the numbers of all parts into rows of these lengths, padded with 0: (*lengths.shape, width)."""
    real = np.arange(width) < np.asarray(lengths)[..., None]
    padded = np.zeros(real.shape, np.int64)
    padded[real] = np.concatenate(parts)
    return padded


class DeviceData:
    """The clients' examples where they train: `PartitionedData` are copied there once, others by cohort."""

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        self.data, self.device = data, device
        self.augmentation: Augmentation | None = getattr(data, "augmentation", None)
        self._all: tuple[Tensor, Tensor] | None = None
        if isinstance(data, PartitionedData) and data.derive is None:
            # Targets that do not suit the task are failures of the clients that have them.
            with suppress(ValueError):
                data.criterion.check(data.train[1], data.num_outputs)
                self._all = self._move(data.train)

    def examples(self, client: int, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return some of one client's examples, given as indices into its own."""
        return self._move(self.data.examples(client, indices))

    def batches(
        self, clients: Sequence[int], indices: Sequence[BatchIndices], dtype: torch.dtype
    ) -> CohortBatches:
        """Return the batches of some clients, given as indices into each client's own examples.

        A target that does not suit the task, such as a label that is not one of its classes, is a ValueError.
        """
        if self._all is not None and isinstance(self.data, PartitionedData):
            own = map(self.data.train_rows, clients)
            of_all = [BatchIndices(rows[b.indices], *b[1:]) for rows, b in zip(own, indices, strict=True)]
            return CohortBatches(*self._all, of_all, dtype, self.augmentation, self.data.criterion)
        parts, of_parts, start = [], [], 0
        for client, wanted in zip(clients, indices, strict=True):
            distinct, positions = np.unique(wanted.indices, return_inverse=True)
            parts.append(self.data.examples(client, distinct))
            of_parts.append(wanted._replace(indices=start + positions))
            start += len(distinct)
        inputs, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.data.criterion.check(targets, self.data.num_outputs)
        return CohortBatches(
            *self._move((inputs, targets)), of_parts, dtype, self.augmentation, self.data.criterion
        )

    def _move(self, examples: tuple[NDArray[Any], NDArray[Any]]) -> tuple[Tensor, Tensor]:
        inputs, targets = (as_tensor(array).to(self.device) for array in examples)
        return inputs, targets
