"""How the gradients of a cohort of clients are computed, each at its own weights; the rules do not know.

`loop` takes one client after the other, `vmap` lets torch vectorise the model over the clients. Chains of
layers have their passes written out: `stacked` for linear ones (stacked.py, dual.py), `chain` for others
(chain.py). All give the same numbers up to the rounding of sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from clients.gradients.batches import Batch, CohortBatches, Steps
from clients.gradients.flat import FlatModel
from clients.rules.base import Change, Rate, subtract


class CohortOracle(ABC):
    """Gradients of A clients' mean cross-entropies."""

    @abstractmethod
    def touched(self, chosen: Steps) -> int:
        """Return how many weights of a client each step reads and changes."""

    def alike(self, chosen: Steps) -> Hashable:
        """Return what clients of one cohort have in common: the padded size of their batches, at least."""
        return chosen.padded

    def room(self, chosen: Steps, input_size: int) -> int:
        """Return how many numbers of a client's examples are in memory at a time, for inputs of that size."""
        return chosen.padded * input_size

    def at_once(self, chosen: Steps) -> bool:
        """Return whether a client's steps are better done all at once, by `run`, where they are plain SGD."""
        return False

    def run(self, y: Tensor, rate: Tensor, batches: CohortBatches) -> Tensor:
        """Do all steps of plain SGD.

        Parameters
        ----------
        y
            Weights, shape (K, M), the same in all rows, changed in place.
        rate
            eta of each client, shape (K, 1).
        batches
            Of all steps.

        Returns
        -------
        losses
            Of each step, shape (T, K).
        """
        raise TypeError(f"{type(self).__name__} does single steps")

    @abstractmethod
    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), overwritten by the next call, and losses, shape (A,), at `y`."""

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """Do y -= rate g(y), after `besides` has changed `y`; return the losses, shape (A,)."""
        gradient, losses = self.gradient(y, batch)
        if besides is not None:
            besides(y)
        subtract(y, gradient, rate)
        return losses

    @abstractmethod
    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`."""


class AnyModel(CohortOracle):
    """An oracle that needs to know no more of the model than how to call it."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model

    def touched(self, chosen: Steps) -> int:
        """See `CohortOracle.touched`: all."""
        return len(self.model.vector)

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`."""
        return self.model.fisher(y, examples)


class Loop(AnyModel):
    """One client after the other, any model; the only one for models that are different in each call.

    Parameters
    ----------
    model
        The model.
    """

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M)."""
        if len(y) == 1:  # no copy
            n = batch.lengths[0]
            gradient, loss = self.model.gradient(y[0], (batch.inputs[0, :n], batch.labels[0, :n]))
            return gradient[None], loss[None]
        gradients, losses = torch.empty_like(y), y.new_empty(len(y))
        for k, n in enumerate(batch.lengths):
            examples = (batch.inputs[k, :n], batch.labels[k, :n])
            gradients[k], losses[k] = self.model.gradient(y[k], examples)
        return gradients, losses


class Vmapped(AnyModel):
    """All clients in one call that torch makes of the model.

    Parameters
    ----------
    model
        The model; all of it is trained, as buffers would have to differ between clients.

    Raises
    ------
    ValueError
        The model has buffers or frozen parameters.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        if any(True for _ in model.module.buffers()) or not all(
            p.requires_grad for p in model.module.parameters()
        ):
            raise ValueError("cohort vmap: the model has buffers or frozen parameters; use cohort loop")
        self._names = [name for name, _ in model.module.named_parameters()]
        self._sizes = [p.numel() for p in model.module.parameters()]
        self._call = vmap(grad_and_value(self._loss))

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M)."""
        parts = zip(torch.split(y, self._sizes, dim=1), self.model.shapes, strict=True)
        views = (part.view(-1, *shape) for part, shape in parts)
        parameters = dict(zip(self._names, views, strict=True))
        gradients, losses = self._call(parameters, batch.inputs, batch.labels, batch.weights)
        return torch.cat([gradients[name].flatten(1) for name in self._names], dim=1), losses

    def _loss(self, at: dict[str, Tensor], x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits = functional_call(self.model.module, at, (x,))
        return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()
