"""Models that `torch.func.vmap` can vectorise over the clients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import ModuleOracle


class Vmap(ModuleOracle):
    """Models without buffers, vectorised over the clients by `torch.func.vmap`.

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
        self._grad_and_loss = vmap(grad_and_value(self._loss))

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `CohortOracle.gradient`."""
        parts = zip(torch.split(y, self._sizes, dim=1), self.model.shapes, strict=True)
        views = (part.view(-1, *shape) for part, shape in parts)
        parameters = dict(zip(self._names, views, strict=True))
        gradients, losses = self._grad_and_loss(parameters, batch.inputs, batch.labels, batch.weights)
        return torch.cat([gradients[name].flatten(1) for name in self._names], dim=1), losses

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits = functional_call(self.model.module, parameters, (x,))
        return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()
