"""Any model, one client after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from clients.gradients.batches import Batch
from clients.gradients.oracle import ModuleOracle


class Loop(ModuleOracle):
    """Any model, one client after the other, with the gradients of autograd."""

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `CohortOracle.gradient`."""
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
