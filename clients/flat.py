"""A torch model whose weights are one vector.

Local methods are written for flat vectors: one operation updates the whole model, and the vector is what goes
over the wire.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional


class FlatModel:
    """A classifier whose tensors are views of one vector, and whose gradients are views of another.

    Parameters
    ----------
    module
        The model; its tensors are moved to `device` and become views.
    device
        Where to compute.

    Attributes
    ----------
    vector
        Trainable tensors, then floating-point buffers, shape (M,).
    shapes
        Shape of each of them.
    """

    def __init__(self, module: nn.Module, device: str | torch.device = "cpu") -> None:
        self.module = module.to(device)
        trainable = [p for p in module.parameters() if p.requires_grad]
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        tensors: list[Tensor] = [*trainable, *buffers]
        self.shapes = tuple(tuple(t.shape) for t in tensors)
        self.vector = torch.cat([t.detach().reshape(-1) for t in tensors])
        self._gradient = torch.zeros_like(self.vector)
        start = 0
        for position, tensor in enumerate(tensors):
            part = slice(start, start + tensor.numel())
            tensor.data = self.vector[part].view_as(tensor)
            if position < len(trainable):
                tensor.grad = self._gradient[part].view_as(tensor)
            start = part.stop

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.vector.device

    def split(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut a vector of shape (M,) into one array a tensor."""
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [p.reshape(s) for p, s in zip(np.split(vector, cuts), self.shapes, strict=True)]

    def arrays(self) -> list[NDArray[Any]]:
        """Copies of the tensors, in the order of the vector."""
        return self.split(self.vector.cpu().numpy().copy())

    def load(self, vector: NDArray[Any]) -> None:
        """Set all weights, shape (M,)."""
        self.vector.copy_(torch.from_numpy(np.array(vector)))

    def gradient(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Gradient and value of the mean cross-entropy at weights `y`.

        Parameters
        ----------
        y
            Weights, shape (M,); the model's own vector or another one, which is copied into it.
        examples
            Inputs and labels of a batch.

        Returns
        -------
        gradient, loss
            Shape (M,), overwritten by the next call, and a scalar.
        """
        if y is not self.vector:
            self.vector.copy_(y)
        self._gradient.zero_()
        inputs, labels = examples
        loss = functional.cross_entropy(self.module(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._gradient, loss.detach()
