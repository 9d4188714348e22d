"""Stacks of linear layers for many clients at once, with the backward pass written out.

The memory traffic of the weights is what such a model costs. So a step reads each client's weights for the
forward pass, and changes them in place by the product of two thin matrices: the gradient is never written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.batches import Batch
from clients.flat import FlatModel
from clients.sgd import Change, Rate


class Views(NamedTuple):
    """A layer's weights (A, o, i) and (A, i, o), and biases (A, o) and (A, 1, o), where it has some."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    bias_row: Tensor | None


class Layer(NamedTuple):
    """Where a layer's numbers lie in the flat vector, and what follows it."""

    start: int
    outputs: int
    inputs: int
    bias: bool
    relu: bool

    def views(self, vectors: Tensor) -> Views:
        """Return the layer's part of vectors of shape (A, M)."""
        stop = self.start + self.outputs * self.inputs
        weight = vectors[:, self.start : stop].view(-1, self.outputs, self.inputs)
        bias = vectors[:, stop : stop + self.outputs] if self.bias else None
        return Views(weight, weight.transpose(1, 2), bias, None if bias is None else bias[:, None])


def linear_layers(module: nn.Module) -> list[Layer] | None:
    """Return the layers of a chain of linear layers and ReLUs; None where the model is anything else."""
    if type(module) is not nn.Sequential:
        return None
    layers: list[Layer] = []
    start = 0
    for position, part in enumerate(module):
        if type(part) is nn.Flatten and not position and part.start_dim == 1 and part.end_dim == -1:
            continue
        if type(part) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(part) is nn.Linear and all(p.requires_grad for p in part.parameters()):
            layers.append(Layer(start, part.out_features, part.in_features, part.bias is not None, False))
            start += sum(p.numel() for p in part.parameters())
        else:
            return None
    return layers if layers and not layers[-1].relu else None


class StackedLinear:
    """Gradients of A clients' mean cross-entropies, each at its own weights.

    Parameters
    ----------
    model
        A chain of linear layers and ReLUs.

    Raises
    ------
    ValueError
        The model is something else.
    """

    def __init__(self, model: FlatModel) -> None:
        layers = linear_layers(model.module)
        if layers is None:
            raise ValueError("cohort stacked: the model is no chain of linear layers and ReLUs")
        self.layers = layers
        self._seen: tuple[Tensor | None, list[Views]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M)."""
        inputs, errors, losses = self._backward(self._views(y), batch)
        gradient = torch.empty_like(y)
        for layer, x, error in zip(self.layers, inputs, errors, strict=True):
            at = layer.views(gradient)
            at.weight.copy_(error.transpose(1, 2) @ x)
            if at.bias is not None:
                torch.sum(error, 1, out=at.bias)
        return gradient, losses

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """Do y -= rate g(y), after `besides` has changed `y`; return the losses, shape (A,)."""
        views = self._views(y)
        inputs, errors, losses = self._backward(views, batch)
        if besides is not None:
            besides(y)
        factor = rate[..., None] if isinstance(rate, Tensor) else rate
        for at, x, error in zip(views, inputs, errors, strict=True):
            scaled = error.mul_(factor)
            at.weight.baddbmm_(scaled.transpose(1, 2), x, alpha=-1)
            if at.bias is not None:
                at.bias.sub_(scaled.sum(1))
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Diagonal of the empirical Fisher information at weights `y`, shape (M,), see `FlatModel.fisher`.

        The gradient of one example is an outer product, so its square is that of the squares.
        """
        inputs, labels = examples
        each = torch.ones((1, len(labels)), dtype=y.dtype, device=y.device)
        found, errors, _ = self._backward(
            self._views(y[None]), Batch(inputs[None], labels[None], each, np.array([len(labels)]))
        )
        diagonal = torch.zeros_like(y)[None]
        for layer, x, error in zip(self.layers, found, errors, strict=True):
            at = layer.views(diagonal)
            at.weight.copy_(error.square().transpose(1, 2) @ x.square())
            if at.bias is not None:
                torch.sum(error.square(), 1, out=at.bias)
        return diagonal[0] / len(labels)

    def _views(self, y: Tensor) -> list[Views]:
        """Return each layer's part of `y`, which is the same from one step to the next, as a rule."""
        if self._seen[0] is not y:
            self._seen = y, [layer.views(y) for layer in self.layers]
        return self._seen[1]

    def _backward(self, views: list[Views], batch: Batch) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return each layer's inputs (A, B, i), derivatives with its outputs (A, B, o), and losses (A,)."""
        inputs, x = [], batch.inputs.flatten(2)
        for layer, at in zip(self.layers, views, strict=True):
            inputs.append(x)
            if at.bias_row is None:
                x = torch.bmm(x, at.transposed)
            else:
                x = torch.baddbmm(at.bias_row, x, at.transposed)
            if layer.relu:
                x = x.relu_()
        log_p, each = functional.log_softmax(x, -1), batch.weights[..., None]
        labels = batch.labels[..., None]
        losses = (log_p.gather(2, labels) * each).sum((1, 2)).neg_()
        error = log_p.exp_().mul_(each)
        error.scatter_add_(2, labels, -each)
        errors = [error]
        for position in range(len(self.layers) - 1, 0, -1):
            error = torch.bmm(error, views[position].weight)
            if self.layers[position - 1].relu:
                error.mul_(inputs[position] > 0)
            errors.append(error)
        return inputs, errors[::-1], losses
