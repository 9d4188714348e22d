"""Linear classifiers, all steps of a client in code that Numba has compiled, clients on all cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.stacked import StackedLinear
from clients.rules.base import Correction
from fedtide.tasks.criteria import CrossEntropy

MAX_THREADS = 16  # more would wait for memory


class Compiled(StackedLinear):
    """One linear layer with cross-entropy: all steps of a client in compiled code, clients on all cores.

    Rules that do more in a step than correct its gradient train in the single steps of `StackedLinear`.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        fits = len(self.layers) == 1 and type(model.criterion) is CrossEntropy
        if not fits or model.device.type != "cpu" or model.vector.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                "cohort compiled: the model is not a single linear layer with cross-entropy, in single or "
                "double precision on a CPU; use cohort stacked"
            )
        try:
            from clients.gradients.linear_sgd import train
        except ImportError as error:
            raise ValueError(f"cohort compiled: {error}; pip install numba, or use cohort stacked") from None
        self._train = train
        self.threads = min(MAX_THREADS, torch.get_num_threads())
        self._others = ThreadPoolExecutor(max(1, self.threads - 1))  # none is started before it is needed

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        """Return whether the examples stay the same in all steps."""
        return indices.changes is None

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> Tensor:
        losses = y.new_zeros(batches.indices.shape[:2])
        direction = correction.direction if correction.direction is not None else y.new_empty(0)
        train = partial(
            self._train,
            y.numpy(),
            _rows(start),
            correction.strength,
            _rows(cast(Tensor, direction)),
            rate.view(-1).numpy(),
            batches.inputs.flatten(1).contiguous().numpy(),
            batches.indices.numpy(),
            batches.targets.numpy(),
            batches.lengths,
            self.layers[0].has_bias,
            losses.numpy(),
        )
        count = min(self.threads, len(y))
        # Clients are sorted by their steps, so that every count-th make equal shares. This thread does one of
        # them: if it waited, two others would often share the core that it leaves.
        others = [self._others.submit(train, first, count) for first in range(1, count)]
        train(0, count)
        for other in others:
            other.result()
        return losses


def _rows(vectors: Tensor) -> NDArray[Any]:
    """Return vectors (K, M) as they are, and one vector for all clients, (M,) or expanded, as (1, M)."""
    if vectors.dim() == 1:
        return vectors[None].numpy()
    return (vectors[:1] if not vectors.stride(0) else vectors).contiguous().numpy()
