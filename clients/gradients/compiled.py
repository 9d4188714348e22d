"""Linear layers and ReLUs, all steps of a client in code that Numba has compiled, clients on all cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.stacked import DualLinear
from clients.rules.base import Correction
from fedtide.ground.errors import SettingsError
from fedtide.tasks.criteria import CrossEntropy

MAX_THREADS = 16  # more would wait for memory


class Compiled(DualLinear):
    """Linear layers with ReLUs between them and cross-entropy: all steps of a client in compiled code.

    Clients train on all cores. The dual form stays where it takes far fewer operations, as for many passes
    over few examples. Rules that do more in a step than correct its gradient train in the single steps of
    `StackedLinear`.
    """

    max_work = 0.25  # products of many examples are no faster here, and the dual form uses one core

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        *lower, last = self.layers
        fits = all(layer.relu and layer.has_bias == last.has_bias for layer in lower)
        fits &= type(model.criterion) is CrossEntropy
        if not fits or model.device.type != "cpu" or model.vector.dtype not in (torch.float32, torch.float64):
            raise SettingsError(
                "the model is not a sequence of linear layers with ReLUs between them, all "
                "with biases or none, and cross-entropy, in single or double precision on a CPU; use cohort "
                "stacked"
            )
        try:
            from clients.gradients import linear_sgd
        except ImportError as error:
            raise SettingsError(f"{error}; pip install numba, or use cohort stacked") from None
        self._kernels = linear_sgd
        self.widths = np.array([self.layers[0].in_features, *(layer.out_features for layer in self.layers)])
        self.threads = min(MAX_THREADS, torch.get_num_threads())
        self._others = ThreadPoolExecutor(max(1, self.threads - 1))  # none is started before it is needed

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        """Return whether the examples stay the same in all steps."""
        return indices.changes is None

    def uses_dual(self, indices: BatchIndices) -> bool:
        return len(self.layers) > 1 and super().uses_dual(indices)

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
        if correction.is_zero and self.uses_dual(batches.clients[0]):
            return super().run_fused(y, start, rate, batches, correction)
        losses, norms = y.new_zeros(batches.indices.shape[:2]), np.zeros(len(y))
        direction = correction.direction if correction.direction is not None else y.new_empty(0)
        work = self._kernels.Work(
            y.numpy(),
            _rows(start),
            correction.strength,
            _rows(cast(Tensor, direction)),
            rate.view(-1).numpy(),
            batches.inputs.flatten(1).contiguous().numpy(),
            batches.indices.numpy(),
            batches.targets.numpy(),
            batches.lengths,
            losses.numpy(),
            norms,
        )
        count = min(self.threads, len(y))
        run = self._kernels.train_layers if len(self.layers) > 1 else self._kernels.train

        def train(first: int) -> None:
            space = self._space(batches.indices.shape[2])
            run(work, *space, first, count)

        # Clients are sorted by their steps, so that every count-th make equal shares. This thread does one of
        # them: if it waited, two others would often share the core that it leaves.
        others = [self._others.submit(train, first) for first in range(1, count)]
        train(0)
        for other in others:
            other.result()
        return losses, norms

    def _space(self, padded_length: int) -> list[Any]:
        """Return room for the weights, activations and errors of a client, see `linear_sgd`."""
        batch, widths, line = _up(padded_length, 10), self.widths.tolist(), self._kernels.LINE

        def zeros(*shape: int) -> NDArray[Any]:
            return torch.zeros(shape, dtype=self.model.vector.dtype).numpy()

        if len(self.layers) == 1:
            size, classes = widths
            even = _up(classes, 2)
            return [zeros(even * _up(size, line)), zeros(classes), zeros(even, batch)]
        tens, pitches = [_up(width, 10) for width in widths[1:]], [_up(width, line) for width in widths[:-1]]
        return [
            self.widths,
            self.layers[0].has_bias,
            zeros(sum(m * n for m, n in zip(tens, pitches, strict=True))),
            zeros(sum(tens)),
            zeros(sum(tens), batch),
            zeros(len(tens), batch * max(pitches[1:])),
            zeros(batch, max(tens)),
        ]


def _up(number: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-number // unit) * unit


def _rows(vectors: Tensor) -> NDArray[Any]:
    """Return vectors (K, M) as they are, and one vector for all clients, (M,) or expanded, as (1, M)."""
    if vectors.dim() == 1:
        return vectors[None].numpy()
    return (vectors[:1] if not vectors.stride(0) else vectors).contiguous().numpy()
