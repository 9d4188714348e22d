"""The gradients of a cohort of clients, each at its own weights: the interface of all oracles.

`Loop` trains one client after the other, `Vmap` vectorises the model over the clients. Sequences of layers
have their backward pass written out: `StackedLinear` for linear layers, with all clients in the same calls,
`Chain` for other layers, one client after the other. `CompiledChain` has its convolutions in machine code,
`Compiled` all steps of linear layers. They agree up to the rounding of sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel, one_thread
from clients.gradients.proof import obstacle, prove
from clients.rules.base import Change, Correction
from clients.rules.vectors import subtract
from fedtide.ground.errors import SettingsError
from fedtide.tasks import Examples


class CohortOracle(ABC):
    """Gradients of the mean losses of A clients; fused steps are done for `threads` clients at a time.

    A SettingsError says that the model is not of the kind that the oracle supports.
    """

    threads = 1

    def __init__(self, model: FlatModel) -> None:
        if reason := obstacle(model):
            raise SettingsError(f"{reason}; use cohort loop")
        self.model = model

    def check(self, examples: Examples, fused: bool = True) -> None:
        """Raise ValueError, with the reason, if these examples show that it cannot train the model.

        `DiffersError`: it can, but not with the gradients of autograd. `fused`: steps in one call are tried,
        too, which loads compiled code.
        """
        try:
            with one_thread():  # as clients train
                prove(self, examples, fused)
        except torch.OutOfMemoryError:
            raise  # which says nothing about the model
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise error if isinstance(error, SettingsError) else ValueError(str(error)) from None

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        """Decide whether `run_fused` does all steps of a client; `corrected`: with a correction."""
        return False

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Do all steps of SGD; return the losses of each step, shape (T, K), and `update_norms`, (K,).

        `y`, shape (K, M), receives the weights, which are those of `start` at first: rows that are equal may
        be one row expanded, which is faster. `rate` has shape (K, 1). The correction is zero unless
        `fuses_steps` has agreed to one.
        """
        raise TypeError(f"{type(self).__name__} cannot fuse steps")

    @abstractmethod
    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M).

        The next call may overwrite the gradients.
        """

    def descend(self, y: Tensor, rate: Tensor, batch: Batch, change: Change | None) -> Tensor:
        """Do y -= rate g(y), with g(y) computed before `change` is applied; return the losses, shape (A,).

        `rate` has shape (A, 1).
        """
        gradient, losses = self.gradient(y, batch)
        if change is not None:
            change(y)
        subtract(y, gradient, rate)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`."""
        return self.model.fisher(y, examples)


def update_norms(after: Tensor, before: Tensor) -> NDArray[np.float64]:
    """Return the norms of the clients' updates, shape (K,); infinite where single precision overflows."""
    norms: Tensor = torch.linalg.vector_norm(after - before, dim=1)
    return norms.double().cpu().numpy()
