"""The gradients of a cohort of clients, each at its own weights: the interface, and those by autograd.

`Loop` trains one client after the other, `Vmap` vectorises the model over the clients. Sequences of layers
have their backward pass written out: `StackedLinear` for linear layers, with all clients in the same calls,
`Chain` for other layers, one client after the other. `Compiled` and `CompiledChain` do all steps of such
models in machine code. They agree up to the rounding of sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel, as_tensor, one_thread
from clients.gradients.precision import BFLOAT16, computing
from clients.gradients.proof import hooked_weight, obstacle, prove
from clients.rules.base import Change, Correction
from clients.rules.vectors import subtract
from fedtide.base.errors import SettingsError
from fedtide.tasks import Examples

DRAWS = "it draws from PyTorch's generator, other than by layers such as nn.Dropout"


class CohortOracle(ABC):
    """Gradients of the mean losses of A clients; fused steps are done for `threads` clients at a time.

    A SettingsError says that the model is not of the kind that the oracle supports.
    """

    threads = 1
    by_autograd = False  # whether the layers themselves compute, in any precision

    def __init__(self, model: FlatModel) -> None:
        if model.precision == BFLOAT16 and not self.by_autograd:
            raise SettingsError("it does not compute in bfloat16; use cohort loop or vmap")
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
            said = DRAWS if "randomness" in str(error) else str(error)
            raise error if isinstance(error, SettingsError) else ValueError(said) from None

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


class Loop(CohortOracle):
    """Any model, one client after the other."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        self._begin(batch, 0)
        if len(y) == 1:  # no copy
            n = batch.lengths[0]
            gradient, loss = self.model.gradient(y[0], (batch.inputs[0, :n], batch.targets[0, :n]))
            return gradient[None], loss[None]
        gradients, losses = torch.empty_like(y), y.new_empty(len(y))
        for k, n in enumerate(batch.lengths):
            self._begin(batch, k)
            examples = (batch.inputs[k, :n], batch.targets[k, :n])
            gradients[k], losses[k] = self.model.gradient(y[k], examples)
        return gradients, losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`; one example after the other where the model cannot be vectorised."""
        if hooked_weight(self.model.module):
            return self.model.fisher_by_example(y, examples)
        try:
            return super().fisher(y, examples)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):
            return self.model.fisher_by_example(y, examples)

    def _begin(self, batch: Batch, k: int) -> None:
        if (seed := batch.seed(k)) is not None:
            self.model.generator.manual_seed(seed)
            self.model.random.begin(seed, self.model.device)


class Vmap(CohortOracle):
    """Models that treat each example independently, vectorised over the clients by `torch.func.vmap`.

    Padding would change what depends on a whole batch.
    """

    by_autograd = True

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        frozen = {*model.frozen_parts}  # which treat each example alike
        trained = (part for part in model.module.modules() if part not in frozen)
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in trained):
            raise SettingsError("the model has batch normalization; use cohort loop")
        self._grad_and_loss = vmap(grad_and_value(self._loss))

    def check(self, examples: Examples, fused: bool = True) -> None:
        super().check(examples, fused)
        if self.model.mixes(as_tensor(examples[0]).to(self.model.device)):
            raise SettingsError("it mixes the examples of a batch, which padding would change")

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        seeds = torch.tensor(batch.seeds or [0] * len(y), device=y.device)
        gradients, losses = self._grad_and_loss(y, batch.inputs, batch.targets, batch.weights, seeds)
        return gradients, losses

    def _loss(self, y: Tensor, x: Tensor, targets: Tensor, weights: Tensor, seed: Tensor) -> Tensor:
        """The mean loss of one client, whose frozen weights are those of the model."""
        self.model.random.begin(seed, self.model.device)
        parameters = dict(zip(self.model.names, self.model.views(y), strict=True))
        with computing(self.model.precision, self.model.device):
            outputs = functional_call(self.model.module, parameters, (x,))
        return (self.model.criterion.losses(outputs.to(y.dtype), targets) * weights).sum()


def update_norms(after: Tensor, before: Tensor) -> NDArray[np.float64]:
    """Return the norms of the clients' updates, shape (K,); infinite where single precision overflows."""
    norms: Tensor = torch.linalg.vector_norm(after - before, dim=1)
    return norms.double().cpu().numpy()
