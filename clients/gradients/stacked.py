"""Stacks of linear layers for many clients at once, with the backward pass written out.

The memory traffic of the weights is what such a model costs. So a step reads each client's weights for the
forward pass, and changes them in place by the product of two thin matrices: the gradient is never written.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.gradients.batches import Batch, Steps
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import CohortOracle
from clients.rules.base import Change, Rate


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
    whole = start == sum(p.numel() for p in module.parameters())  # no layer is there twice
    return layers if layers and not layers[-1].relu and whole else None


class StackedLinear(CohortOracle):
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
        self.layers, self._size = layers, len(model.vector)
        self._seen: tuple[Tensor | None, list[Views]] = (None, [])

    def touched(self, chosen: Steps) -> int:
        """See `CohortOracle.touched`: all."""
        return self._size

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M)."""
        views = self.views(y)
        inputs, errors, losses = self._all_passes(views, batch.inputs, batch.labels, batch.weights)
        gradient = torch.empty_like(y)
        for layer, x, error in zip(self.layers, inputs, errors, strict=True):
            at = layer.views(gradient)
            at.weight.copy_(error.transpose(1, 2) @ x)
            if at.bias is not None:
                torch.sum(error, 1, out=at.bias)
        return gradient, losses

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """Do y -= rate g(y), after `besides` has changed `y`; return the losses, shape (A,)."""
        views = self.views(y)
        inputs, errors, losses = self._all_passes(views, batch.inputs, batch.labels, batch.weights)
        if besides is not None:
            besides(y)
        factor = rate[..., None] if isinstance(rate, Tensor) else rate
        for at, x, error in zip(views, inputs, errors, strict=True):
            subtract_product(at, error.mul_(factor), x)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Diagonal of the empirical Fisher information at weights `y`, shape (M,), see `FlatModel.fisher`.

        The gradient of one example is an outer product, so its square is that of the squares.
        """
        inputs, labels = examples
        each = torch.ones((1, len(labels)), dtype=y.dtype, device=y.device)
        found, errors, _ = self._all_passes(self.views(y[None]), inputs[None], labels[None], each)
        diagonal = torch.zeros_like(y)[None]
        for layer, x, error in zip(self.layers, found, errors, strict=True):
            at = layer.views(diagonal)
            at.weight.copy_(error.square().transpose(1, 2) @ x.square())
            if at.bias is not None:
                torch.sum(error.square(), 1, out=at.bias)
        return diagonal[0] / len(labels)

    def views(self, y: Tensor) -> list[Views]:
        """Return each layer's part of `y`, which is the same from one step to the next, as a rule."""
        if self._seen[0] is not y:
            self._seen = y, [layer.views(y) for layer in self.layers]
        return self._seen[1]

    def _all_passes(
        self, views: list[Views], inputs: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return what `passes` does, and the inputs of the first layer before the others."""
        x = inputs.flatten(2)
        others, errors, losses = self.passes(views, outputs(views[0], x), labels, weights)
        return [x, *others], errors, losses

    def passes(
        self, views: list[Views], first: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Go on from the first layer's outputs to the losses, and back to them.

        Parameters
        ----------
        views
            Of the layers.
        first
            The first layer's outputs, shape (A, B, o), overwritten.
        labels, weights
            See `Batch`.

        Returns
        -------
        inputs, errors, losses
            Inputs (A, B, i) of all layers but the first, derivatives with the outputs (A, B, o) of all, and
            losses (A,).
        """
        inputs, x = [], first
        for position, layer in enumerate(self.layers):
            if position:
                inputs.append(x)
                x = outputs(views[position], x)
            if layer.relu:
                x = x.relu_()
        error, losses = softmax_errors(x, labels, weights)
        errors = [error]
        for position in range(len(self.layers) - 1, 0, -1):
            error = torch.bmm(error, views[position].weight)
            if self.layers[position - 1].relu:
                error.mul_(inputs[position - 1] > 0)
            errors.append(error)
        return inputs, errors[::-1], losses


def outputs(at: Views, x: Tensor) -> Tensor:
    """Return a layer's outputs, shape (A, B, o), for inputs of shape (A, B, i)."""
    if at.bias_row is None:
        return torch.bmm(x, at.transposed)
    return torch.baddbmm(at.bias_row, x, at.transposed)


def subtract_product(at: Views, errors: Tensor, x: Tensor) -> None:
    """Take the sum over examples of errors (A, B, o) times inputs (A, B, i) off a layer's weights."""
    at.weight.baddbmm_(errors.transpose(1, 2), x, alpha=-1)
    if at.bias is not None:
        at.bias.sub_(errors.sum(1))


def softmax_errors(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of cross-entropies with the logits, and the cross-entropies.

    Parameters
    ----------
    logits
        Shape (..., B, C).
    labels, weights
        Of the examples, shape (..., B).

    Returns
    -------
    errors, losses
        Shapes (..., B, C) and (...).
    """
    log_p, each, labels = functional.log_softmax(logits, -1), weights[..., None], labels[..., None]
    losses = (log_p.gather(-1, labels) * each).sum((-2, -1)).neg_()
    errors = log_p.exp_().mul_(each)
    return errors.scatter_add_(-1, labels, -each), losses
