"""Models that `torch.func.vmap` vectorises over the clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import ModuleOracle


class Vmap(ModuleOracle):
    """Models that treat each example independently, vectorised over the clients by `torch.func.vmap`.

    Parameters
    ----------
    model
        The model.

    Raises
    ------
    ValueError
        The model has frozen parameters, buffers, which would differ between clients, or statistics over
        batches, which padding would change.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        module = model.module
        if any(True for _ in module.buffers()) or not all(p.requires_grad for p in module.parameters()):
            raise ValueError("cohort vmap: the model has buffers or frozen parameters; use cohort loop")
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            raise ValueError("cohort vmap: the model has batch normalization; use cohort loop")
        self._names = [name for name, _ in module.named_parameters()]
        self._sizes = [p.numel() for p in module.parameters()]
        self._grad_and_loss = vmap(grad_and_value(self._loss))

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Try to vectorise the model, with two clients and two examples of this shape.

        Raises
        ------
        ValueError
            PyTorch cannot, because of a random layer or control flow that depends on values, for example.
        """
        y = self.model.vector.expand(2, -1).clone()
        labels = torch.zeros((2, 2), dtype=torch.int64, device=y.device)
        batch = Batch(y.new_zeros((2, 2, *input_shape)), labels, y.new_full((2, 2), 0.5), np.array([2, 2]))
        try:
            self.gradient(y, batch)
        except torch.OutOfMemoryError:
            raise  # which says nothing about the model
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"cohort vmap: PyTorch cannot vectorise the model: {error}; use cohort loop"
            ) from None

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
