"""Linear layers and ReLUs for many clients in the same calls, with the backward pass written out.

Such a model is limited by the memory traffic of its weights. So a step reads each client's weights for the
forward pass, and updates them in place by the product of two thin matrices: the gradient is never stored.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import CohortOracle
from clients.rules.base import Change


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
    if type(module) is not nn.Sequential:
        return None
    layers: list[LinearLayer] = []
    start = 0
    for position, part in enumerate(module):
        if type(part) is nn.Flatten and not position and part.start_dim == 1 and part.end_dim == -1:
            continue
        if type(part) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif _is_supported(part):
            has_bias = part.bias is not None
            layers.append(LinearLayer(start, part.out_features, part.in_features, has_bias, False))
            start += sum(p.numel() for p in part.parameters())
        else:
            return None
    unshared = start == sum(p.numel() for p in module.parameters())  # no layer occurs twice
    return layers if layers and not layers[-1].relu and unshared else None


def _is_supported(part: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(part) is nn.Linear
        and min(part.in_features, part.out_features) > 1
        and all(p.requires_grad for p in part.parameters())
    )


class StackedLinear(CohortOracle):
    """Linear layers and ReLUs, all clients in the same calls, one step at a time.

    Parameters
    ----------
    model
        A sequence of linear layers and ReLUs.

    Raises
    ------
    ValueError
        The model is something else.
    """

    def __init__(self, model: FlatModel) -> None:
        layers = linear_layers(model.module)
        if layers is None:
            raise ValueError(
                "cohort stacked: the model is not a sequence of linear layers with at least 2 inputs and "
                "outputs, and ReLUs; use cohort loop"
            )
        super().__init__(model)
        self.layers = layers
        self._last: tuple[Tensor | None, list[LinearViews]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `CohortOracle.gradient`."""
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
        """See `CohortOracle.descend`; the gradient is not stored."""
        views = self.views(y)
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        if change is not None:
            change(y)
        for layer_views, x, error in zip(views, inputs, errors, strict=True):
            subtract_gradient(layer_views, error.mul_(rate[..., None]), x)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`.

        The gradient of one example is an outer product, so its square is the outer product of the squares.
        """
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
        """Return what `backpropagate` does, with the inputs of the first layer before those of the others."""
        x = inputs.flatten(2)
        others, errors, losses = self.backpropagate(views, linear(views[0], x), targets, weights)
        return [x, *others], errors, losses

    def backpropagate(
        self, views: list[LinearViews], first: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Do the forward pass after the first layer's product, and the backward pass.

        Parameters
        ----------
        views
            Parameters of the layers.
        first
            Outputs of the first layer before its ReLU, shape (A, B, o), overwritten.
        targets, weights
            See `Batch`.

        Returns
        -------
        inputs, errors, losses
            Inputs (A, B, i) of all layers but the first, derivatives of the losses with respect to the
            outputs (A, B, o) of all layers, and losses (A,).
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
