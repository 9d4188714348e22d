"""Linear layers and ReLUs for many clients in the same calls, with the backward pass written out.

Such a model is limited by the memory traffic of its weights. So a step reads each client's weights for the
forward pass, and updates them in place by the product of two thin matrices: the gradient is never stored.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import CohortOracle, update_norms
from clients.gradients.structure import plain_sequence
from clients.rules.base import Change, Correction
from fedtide.ground.errors import SettingsError


class LinearViews(NamedTuple):
    """A layer's weights (A, o, i) and (A, i, o), and its biases (A, o) and (A, 1, o), if it has any."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    bias_row: Tensor | None


class LinearLayer(NamedTuple):
    """Where the parameters of a linear layer start in the flat vector, and whether a ReLU follows it."""

    start: int
    out_features: int
    in_features: int
    has_bias: bool
    relu: bool

    def views(self, vectors: Tensor) -> LinearViews:
        """Return the layer's part of vectors of shape (A, M)."""
        stop = self.start + self.out_features * self.in_features
        weight = vectors[:, self.start : stop].view(-1, self.out_features, self.in_features)
        bias = vectors[:, stop : stop + self.out_features] if self.has_bias else None
        return LinearViews(weight, weight.transpose(1, 2), bias, None if bias is None else bias[:, None])


def linear_layers(module: nn.Module) -> list[LinearLayer] | None:
    """Return the layers of a sequence of linear layers and ReLUs; None if the model is anything else.

    Layers with a single input or output are not supported: BLAS may round products with vectors differently
    for one client than for several, and a client's result must not depend on who is in the cohort.
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
        elif type(part) is nn.Linear and min(part.weight.shape) > 1:
            out_features, in_features = part.weight.shape
            layers.append(LinearLayer(start, out_features, in_features, part.bias is not None, False))
            start += sum(p.numel() for p in part.parameters())
        else:
            return None
    return layers if layers and not layers[-1].relu else None


class StackedLinear(CohortOracle):
    """Linear layers and ReLUs, all clients in the same calls, one step at a time."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        layers = linear_layers(model.module)
        if layers is None:
            raise SettingsError(
                "the model is not a sequence of linear layers with at least 2 inputs and "
                "outputs, and ReLUs; use cohort loop"
            )
        self.layers = layers
        self._last: tuple[Tensor | None, list[LinearViews]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        views = self.views(y)
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
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        if change is not None:
            change(y)
        for layer_views, x, error in zip(views, inputs, errors, strict=True):
            subtract_gradient(layer_views, error.mul_(rate[..., None]), x)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`: an example's gradient is an outer product, its square one of squares."""
        inputs, targets = examples
        ones = torch.ones((1, len(targets)), dtype=y.dtype, device=y.device)
        layer_inputs, errors, _ = self._backpropagate(self.views(y[None]), inputs[None], targets[None], ones)
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
        """As `backpropagate`, with the inputs of the first layer before those of the others."""
        x = inputs.flatten(2)
        others, errors, losses = self.backpropagate(views, linear(views[0], x), targets, weights)
        return [x, *others], errors, losses

    def backpropagate(
        self, views: list[LinearViews], first: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Do the forward pass after the first layer's product `first`, (A, B, o), and the backward pass.

        Return the inputs (A, B, i) of all layers but the first, the derivatives of the losses with respect to
        the outputs (A, B, o) of all layers, and the losses (A,). `first` is overwritten.
        """
        inputs, x = [], first
        for position, layer in enumerate(self.layers):
            if position:
                inputs.append(x)
                x = linear(views[position], x)
            if layer.relu:
                x = x.relu_()
        error, losses = self.model.criterion.error(x, targets, weights)
        errors = [error]
        for position in range(len(self.layers) - 1, 0, -1):
            error = torch.bmm(error, views[position].weight)
            if self.layers[position - 1].relu:
                error.mul_(inputs[position - 1] > 0)
            errors.append(error)
        return inputs, errors[::-1], losses


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


class DualLinear(StackedLinear):
    """Linear layers, the first of which is in its dual form while a client trains by plain SGD.

    SGD subtracts products of errors and inputs from the weights: after any number of steps they are W - E'X.
    The rows of X are the client's examples, those of E the scaled errors of each example, summed over the
    steps. The first layer's inputs X are data and do not change, so that its outputs are XW' - (XX')E, and
    XW' and XX' are computed once. The first layer holds most of such a model's weights; they are read before
    the first step and written after the last, and products of many examples make better use of a processor.
    """

    max_work = 1.5  # times the operations of single steps: larger products are that much faster

    def cohort_key(self, indices: BatchIndices) -> Hashable:
        return indices.padded_length, indices.padded_distinct if self.uses_dual(indices) else None

    def buffer_size(self, indices: BatchIndices, input_size: int) -> int:
        if not self.uses_dual(indices):
            return super().buffer_size(indices, input_size)
        distinct = indices.padded_distinct
        return distinct * (input_size + distinct + 2 * self.layers[0].out_features)  # X, XX', XW' and E

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        return not corrected and self.uses_dual(indices)

    def uses_dual(self, indices: BatchIndices) -> bool:
        """Return whether the dual form does not take many more operations than single steps.

        They are counted, not timed, so that the same work gives the same bits on every machine.
        """
        if indices.changes is not None:  # which changes the examples in every step
            return False
        first, distinct, total = self.layers[0], indices.padded_distinct, len(indices.indices)
        single = 2 * total * first.in_features * first.out_features
        once = distinct * first.in_features * (distinct + 2 * first.out_features)
        return once + total * distinct * first.out_features <= self.max_work * single

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
        y.copy_(start)
        x, positions = batches.distinct_inputs()
        x, active = x.flatten(2), y
        # Of `start` and not of y: if all rows are one, it stays in the cache.
        at_start = linear(self.layers[0].views(start), x)
        products = torch.bmm(x, x.transpose(1, 2)).add_(self.layers[0].has_bias)  # a bias has inputs of one
        errors = torch.zeros_like(at_start)
        losses = y.new_zeros(positions.shape[:2])
        rows = positions + (torch.arange(len(y), device=y.device) * x.shape[1])[:, None]
        for t, count in enumerate(batches.counts):
            if count < len(active):
                active = y[:count]
            views, of_step = self.views(active), rows[t, :count].reshape(-1)
            first = _rows(at_start, of_step, count).baddbmm_(
                _rows(products, of_step, count), errors[:count], alpha=-1
            )
            inputs, (error, *others), losses[t, :count] = self.backpropagate(
                views, first, batches.targets[t, :count], batches.weights[t, :count]
            )
            scale = rate[:count, :, None]
            for upper, h, other in zip(views[1:], inputs, others, strict=True):
                subtract_gradient(upper, other.mul_(scale), h)
            errors.view(-1, errors.shape[2]).index_add_(0, of_step, error.mul_(scale).flatten(0, 1))
        subtract_gradient(self.views(y)[0], errors, x)
        return losses, update_norms(y, start)


def _rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Select rows of (A, U, n) values, numbered over all A clients, as (count, B, n)."""
    return values.view(-1, values.shape[2]).index_select(0, rows).view(count, -1, values.shape[2])
