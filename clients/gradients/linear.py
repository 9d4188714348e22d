"""Linear layers, ReLUs and dropout, with the backward pass written out, for many clients.

`StackedLinear` trains all clients in the same calls, one step at a time. Such a model is limited by the
memory traffic of its weights: a step reads each client's weights for the forward pass, and updates them in
place by the product of two thin matrices, so the gradient is never stored. `Compiled` does all steps of a
client in code that Numba has compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.fused import Fused, rounded_up
from clients.gradients.oracle import CohortOracle
from clients.gradients.proof import plain_sequence
from clients.gradients.random_layers import DrawnLayer, is_dropout
from clients.rules.base import Change
from fedtide.base.errors import SettingsError


class LinearViews(NamedTuple):
    """A layer's weights (A, o, i) and (A, i, o), and its biases (A, o) and (A, 1, o), if it has any."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    bias_row: Tensor | None


class LinearLayer(NamedTuple):
    """Where the parameters of a linear layer start in the flat vector, and what follows it."""

    start: int
    out_features: int
    in_features: int
    has_bias: bool
    relu: bool
    dropout: DrawnLayer | None

    def views(self, vectors: Tensor) -> LinearViews:
        """Return the layer's part of vectors of shape (A, M)."""
        stop = self.start + self.out_features * self.in_features
        weight = vectors[:, self.start : stop].view(-1, self.out_features, self.in_features)
        bias = vectors[:, stop : stop + self.out_features] if self.has_bias else None
        return LinearViews(weight, weight.transpose(1, 2), bias, None if bias is None else bias[:, None])


def linear_layers(module: nn.Module) -> list[LinearLayer] | None:
    """Return the layers of a sequence of linear layers, ReLUs and dropout; None: the model is anything else.

    Layers with a single input or output are not supported: BLAS may round products with vectors differently
    for one client than for several, and a client's result must not depend on the others in the cohort.
    """
    parts = plain_sequence(module)
    if parts is None:
        return None
    layers: list[LinearLayer] = []
    start = 0
    for position, part in enumerate(parts):
        if type(part) is nn.Flatten and not position and part.start_dim == 1 and part.end_dim == -1:
            continue
        if type(part) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif is_dropout(part) and layers and not layers[-1].dropout:
            layers[-1] = layers[-1]._replace(dropout=part)
        elif type(part) is nn.Linear and min(part.weight.shape) > 1:
            out_features, in_features = part.weight.shape
            layers.append(LinearLayer(start, out_features, in_features, part.bias is not None, False, None))
            start += sum(p.numel() for p in part.parameters())
        else:
            return None
    return layers if layers and not (layers[-1].relu or layers[-1].dropout) else None


class StackedLinear(CohortOracle):
    """Linear layers, ReLUs and dropout, all clients in the same calls, one step at a time."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        layers = linear_layers(model.module)
        if layers is None:
            raise SettingsError(
                "the model is not a sequence of linear layers with at least 2 inputs and "
                "outputs, ReLUs and dropout; use cohort loop"
            )
        self.layers = layers
        self._last: tuple[Tensor | None, list[LinearViews]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        views = self.views(y)
        self.model.random.begin(batch.seeds, self.model.device)
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        gradient = torch.empty_like(y)
        for layer, x, error in zip(self.layers, inputs, errors, strict=True):
            of_layer = layer.views(gradient)
            of_layer.weight.copy_(error.transpose(1, 2) @ x)
            if of_layer.bias is not None:
                torch.sum(error, 1, out=of_layer.bias)
        return gradient, losses

    def descend(self, y: Tensor, rate: Tensor, batch: Batch, change: Change | None) -> Tensor:
        views = self.views(y)
        self.model.random.begin(batch.seeds, self.model.device)
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        if change is not None:
            change(y)
        for layer_views, x, error in zip(views, inputs, errors, strict=True):
            subtract_gradient(layer_views, error.mul_(rate[..., None]), x)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`: an example's gradient is an outer product, its square one of squares."""
        inputs, targets = examples
        self.model.random.begin(None, self.model.device)
        counts = self.model.criterion.counts(targets)
        weights = y.new_ones(len(targets)) if counts is None else (counts > 0).to(y)
        batch = inputs[None], targets[None], weights[None]
        layer_inputs, errors, _ = self._backpropagate(self.views(y[None]), *batch)
        diagonal = torch.zeros_like(y)[None]
        for layer, x, error in zip(self.layers, layer_inputs, errors, strict=True):
            of_layer = layer.views(diagonal)
            of_layer.weight.copy_(error.square().transpose(1, 2) @ x.square())
            if of_layer.bias is not None:
                torch.sum(error.square(), 1, out=of_layer.bias)
        return diagonal[0] / len(targets)

    def views(self, y: Tensor) -> list[LinearViews]:
        """Return each layer's part of `y`; cached, as `y` is usually that of the last step."""
        if self._last[0] is not y:
            self._last = y, [layer.views(y) for layer in self.layers]
        return self._last[1]

    def _backpropagate(
        self, views: list[LinearViews], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return each layer's inputs (A, B, i), the derivatives in its outputs (A, B, o), and losses (A,)."""
        layer_inputs, x, factors = [], inputs.flatten(2), list[Tensor | None]()
        for layer, of_layer in zip(self.layers, views, strict=True):
            layer_inputs.append(x)
            x = linear(of_layer, x)
            if layer.relu:
                x = x.relu_()
            factors.append(layer.dropout.factors(x[0]) if layer.dropout else None)
            if (scale := factors[-1]) is not None:
                x = x.mul_(scale)
        error, losses = self.model.criterion.error(x, targets, weights)
        errors = [error]
        for position in range(len(self.layers) - 1, 0, -1):
            error = torch.bmm(error, views[position].weight)
            if self.layers[position - 1].relu:
                error.mul_(layer_inputs[position] > 0)
            if (scale := factors[position - 1]) is not None:
                error.mul_(scale)
            errors.append(error)
        return layer_inputs, errors[::-1], losses


def linear(views: LinearViews, x: Tensor) -> Tensor:
    """Return a layer's outputs, shape (A, B, o), for inputs of shape (A, B, i)."""
    if views.bias_row is None:
        return torch.bmm(x, views.transposed)
    return torch.baddbmm(views.bias_row, x, views.transposed)


def subtract_gradient(views: LinearViews, errors: Tensor, x: Tensor) -> None:
    """Subtract the gradient from a layer's parameters, given its errors (A, B, o) and inputs (A, B, i)."""
    views.weight.baddbmm_(errors.transpose(1, 2), x, alpha=-1)
    if views.bias is not None:
        views.bias.sub_(errors.sum(1))


class Compiled(Fused, StackedLinear):
    """Linear layers with ReLUs between them and cross-entropy: all steps of a client in compiled code."""

    otherwise = "stacked"

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        *lower, last = self.layers
        if not all(layer.relu and layer.has_bias == last.has_bias and not layer.dropout for layer in lower):
            raise SettingsError(
                "the model is not a sequence of linear layers with ReLUs between them, all with biases or "
                "none; use cohort stacked"
            )

    @property
    def kernels(self) -> str:
        return "linear_sgd" if len(self.layers) == 1 else "chain_sgd"

    def space(self, shape: torch.Size, batch: int) -> Any:
        widths = [self.layers[0].in_features, *(layer.out_features for layer in self.layers)]
        if len(self.layers) == 1:
            size, even = rounded_up(widths[0], self._kernels.LINE), rounded_up(widths[1], 2)
            numbers = even * size, even * size if batch > 10 else 0, widths[1]
            return self._kernels.Space(*map(self.zeros, numbers), self.zeros(even, batch))
        no_images = np.zeros(0, self._kernels.LAYER), self.zeros(0), np.zeros(0, np.uint8)
        unused = self.zeros(2, 0), self.zeros(2, 0)
        layers = self.linear_space(widths, self.layers[0].has_bias, batch)
        return self._kernels.Space(*no_images, *unused, *layers)
