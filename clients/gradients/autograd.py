"""Gradients by PyTorch's autograd: one client after the other, or vectorised over the clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel, as_tensor
from clients.gradients.oracle import CohortOracle
from fedtide.ground.errors import SettingsError
from fedtide.tasks import Examples


class Loop(CohortOracle):
    """Any model, one client after the other."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.seeds is not None:
            self.model.generator.manual_seed(batch.seeds[0])
        if len(y) == 1:  # no copy
            n = batch.lengths[0]
            gradient, loss = self.model.gradient(y[0], (batch.inputs[0, :n], batch.targets[0, :n]))
            return gradient[None], loss[None]
        gradients, losses = torch.empty_like(y), y.new_empty(len(y))
        for k, n in enumerate(batch.lengths):
            if batch.seeds is not None:
                self.model.generator.manual_seed(batch.seeds[k])
            examples = (batch.inputs[k, :n], batch.targets[k, :n])
            gradients[k], losses[k] = self.model.gradient(y[k], examples)
        return gradients, losses


class Vmap(CohortOracle):
    """Models that treat each example independently, vectorised over the clients by `torch.func.vmap`.

    Padding would change what depends on a whole batch.
    """

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
        gradients, losses = self._grad_and_loss(y, batch.inputs, batch.targets, batch.weights)
        return gradients, losses

    def _loss(self, y: Tensor, x: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The mean loss of one client, whose frozen weights are those of the model."""
        parameters = dict(zip(self.model.names, self.model.views(y), strict=True))
        outputs = functional_call(self.model.module, parameters, (x,))
        return (self.model.criterion.losses(outputs, targets) * weights).sum()
