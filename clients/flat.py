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
from torch.func import functional_call, grad, vmap
from torch.nn import functional

_BLOCK = 1 << 22  # numbers in the gradients of single examples that are held at a time


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
        self._trainable = sum(t.numel() for t in trainable)
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
            Weights, shape (M,): the model's own vector, or another one, and the model keeps its own. Only
            buffers, such as running means, change.
        examples
            Inputs and labels of a batch.

        Returns
        -------
        gradient, loss
            Shape (M,), overwritten by the next call, and a scalar.
        """
        own = None if y is self.vector else self.vector.clone()
        if own is not None:
            self.vector.copy_(y)
        self._gradient.zero_()
        inputs, labels = examples
        loss = functional.cross_entropy(self.module(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if own is not None:
            y[self._trainable :] = self.vector[self._trainable :]
            self.vector.copy_(own)
        return self._gradient, loss.detach()

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Diagonal of the empirical Fisher information: mean over examples of the squared gradient.

        Parameters
        ----------
        y
            Weights, shape (M,); buffers are the model's own.
        examples
            Inputs and labels; the gradients are those of a model in evaluation mode.

        Returns
        -------
        diagonal
            Shape (M,), zero for buffers.
        """
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        parts = torch.split(y[: self._trainable], [p.numel() for p in trainable.values()])
        parameters = {name: part.view_as(p) for part, (name, p) in zip(parts, trainable.items(), strict=True)}

        def loss(at: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(self.module, at, (x[None],))
            return functional.cross_entropy(logits, label[None])

        inputs, labels = examples
        rows = max(1, _BLOCK // max(1, len(self.vector)))
        diagonal = torch.zeros_like(self.vector)
        training = self.module.training
        self.module.eval()
        for x, label in zip(torch.split(inputs, rows), torch.split(labels, rows), strict=True):
            each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, label)
            squares = [each[name].square().sum(dim=0).reshape(-1) for name in parameters]
            diagonal[: self._trainable] += torch.cat(squares)
        self.module.train(training)
        return diagonal / len(labels)
