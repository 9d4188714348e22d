"""How the gradients of a cohort of clients are computed, each at its own weights; the rules do not know.

`loop` takes one client after the other, `vmap` lets torch vectorise the model over the clients, `stacked`
(clients/stacked.py) has the passes of a chain of linear layers written out. All give the same numbers up to
the rounding of sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from clients.batches import Batch
from clients.flat import FlatModel
from clients.sgd import Change, Rate, subtract
from clients.stacked import StackedLinear, linear_layers

IN_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache, also beside other workers


class CohortOracle(Protocol):
    """Gradients of A clients' mean cross-entropies."""

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), overwritten by the next call, and losses, shape (A,), at `y`."""

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """Do y -= rate g(y), after `besides` has changed `y`; return the losses, shape (A,)."""

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`."""


class Unfused(ABC):
    """An oracle whose step is: gradient, then update."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model

    @abstractmethod
    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `CohortOracle.gradient`."""

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """See `CohortOracle.descend`."""
        gradient, losses = self.gradient(y, batch)
        if besides is not None:
            besides(y)
        subtract(y, gradient, rate)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`."""
        return self.model.fisher(y, examples)


class Loop(Unfused):
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


class Vmapped(Unfused):
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


ORACLES: dict[str, Callable[[FlatModel], CohortOracle]] = {
    "stacked": StackedLinear,
    "vmap": Vmapped,
    "loop": Loop,
}


def make_oracle(model: FlatModel, cohort: str = "auto", size: int = 0) -> tuple[CohortOracle, int]:
    """Return what computes gradients, and the largest cohort to give it.

    Parameters
    ----------
    model
        The model.
    cohort
        `stacked`, `vmap`, `loop`; `auto` is `stacked` where the model allows it, else `loop`.
    size
        Largest cohort; 0: one for `loop`, else as many as keep the weights in a CPU's cache.
    """
    if cohort == "auto":
        cohort = "loop" if linear_layers(model.module) is None else "stacked"
    if not size:
        size = 1 if cohort == "loop" else max(1, IN_CACHE // len(model.vector))
    return ORACLES[cohort](model), size
