"""All local steps of a client in one call of compiled code, with the clients on all cores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import CohortOracle
from clients.rules.base import Correction
from fedtide.base.errors import SettingsError
from fedtide.tasks.criteria import CrossEntropy

MAX_THREADS = 16  # more would wait for memory


class Fused(CohortOracle):
    """An oracle whose layers have compiled code, too, which does all steps of SGD with cross-entropy.

    It comes before the oracle that does single steps, which rules need that do more in a step than correct
    its gradient.
    """

    otherwise: str  # the oracle of single steps

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        kinds = torch.float32, torch.float64
        if model.device.type != "cpu" or model.vector.dtype not in kinds:
            raise SettingsError(f"it computes in single or double precision on a CPU; {self._instead}")
        if type(model.criterion) is not CrossEntropy or not model.criterion.is_plain:
            raise SettingsError(f"it is for classes, with cross-entropy; {self._instead}")
        try:
            self._kernels: Any = import_module(f"clients.gradients.{self.kernels}")
        except ImportError as error:
            raise SettingsError(f"{error}; pip install numba, or {self._instead}") from None
        self.threads = min(MAX_THREADS, torch.get_num_threads())
        self._others = ThreadPoolExecutor(max(1, self.threads - 1))  # none is started before it is needed

    @property
    def kernels(self) -> str:
        """The module of the compiled code, with `train`, `Work`, `Space` and `LINE`."""
        return "chain_sgd"

    @property
    def _instead(self) -> str:
        return f"use cohort {self.otherwise}"

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        return indices.changes is None  # the examples stay the same in all steps

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
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
        count, shape = min(self.threads, len(y)), batches.inputs.shape[1:]
        batch = rounded_up(batches.indices.shape[2], 10)

        def train(first: int) -> None:
            self._kernels.train(work, self.space(shape, batch), first, count)

        # Clients are sorted by their steps, so that every count-th make equal shares. This thread does one of
        # them: if it waited, two others would often share the core that it leaves.
        others = [self._others.submit(train, first) for first in range(1, count)]
        train(0)
        for other in others:
            other.result()
        return losses, norms

    @abstractmethod
    def space(self, shape: torch.Size, batch: int) -> Any:
        """Return the module's `Space` for a client: inputs of this shape, at most so many at a time."""

    def linear_space(self, widths: Sequence[int], biased: bool, batch: int) -> list[Any]:
        """Return sizes and memory of linear layers; `widths` are their numbers of inputs, and of outputs."""
        line = self._kernels.LINE
        tens = [rounded_up(width, 10) for width in widths[1:]]
        pitches = [rounded_up(width, line) for width in widths[:-1]]
        numbers = sum(m * n for m, n in zip(tens, pitches, strict=True))
        return [
            np.array(widths),
            biased,
            self.zeros(numbers),
            self.zeros(numbers if batch > 10 else 0),
            self.zeros(sum(tens)),
            self.zeros(sum(tens), batch),
            self.zeros(len(widths), batch * max(pitches)),
            self.zeros(batch, max(tens)),
        ]

    def zeros(self, *shape: int) -> NDArray[Any]:
        """Return an array of the type of the weights; PyTorch's begin with a cache line."""
        return torch.zeros(shape, dtype=self.model.vector.dtype).numpy()


def rounded_up(number: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-number // unit) * unit


def _rows(vectors: Tensor) -> NDArray[Any]:
    """Return vectors (K, M) as they are, and one vector for all clients, (M,) or expanded, as (1, M)."""
    if vectors.dim() == 1:
        return vectors[None].numpy()
    return (vectors[:1] if not vectors.stride(0) else vectors).contiguous().numpy()
