"""Chains of torch's layers, one client after the other, with the backward pass written out.

That leaves out what autograd does besides computing: a graph in every step, and gradients that are stored and
then added to others. Images have their channels last on a CPU, which pools them faster so; and what is pooled
goes through a ReLU after that, not before: the larger of two numbers stays the larger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import AnyModel
from clients.gradients.stacked import softmax_errors
from clients.rules.base import Change, Rate

aten = torch.ops.aten


class Layer(ABC):
    """A layer, and what its backward pass needs of the last forward pass; as it is, it has no weights."""

    tensors = 0  # how many of the model's tensors are the layer's

    @abstractmethod
    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """Return the outputs for inputs `x` and the layer's tensors `at`."""

    @abstractmethod
    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """Return derivatives with the inputs, from those with the outputs; anything if it is the `first`."""

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the layer's tensors."""
        return []

    def descend(self, at: list[Tensor], rate: Rate) -> None:
        """Take the gradients times `rate`, a number or of shape (1,), off the layer's tensors."""
        for tensor, gradient in zip(at, self.gradients(), strict=True):
            tensor.sub_(gradient * rate)


class Convolution(Layer):
    """`nn.Conv2d`."""

    def __init__(self, module: nn.Conv2d, padding: list[int]) -> None:
        self.tensors = 1 if module.bias is None else 2
        self.sizes = None if module.bias is None else [module.out_channels]
        self.how = (list(module.stride), padding, list(module.dilation))
        self.groups = module.groups

    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """See `Layer`."""
        self.x = x
        return torch.conv2d(x, at[0], at[1] if self.sizes else None, *self.how, self.groups)

    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """See `Layer`."""
        wanted = [not first, True, self.tensors == 2]
        how = (*self.how, False, [0, 0], self.groups)  # not transposed
        found: list[Tensor] = aten.convolution_backward(error, self.x, at[0], self.sizes, *how, wanted)
        self.found = found[1 : 1 + self.tensors]
        return found[0]

    def gradients(self) -> list[Tensor]:
        """See `Layer`."""
        return self.found


class Linear(Layer):
    """`nn.Linear`."""

    def __init__(self, module: nn.Linear) -> None:
        self.tensors = 1 if module.bias is None else 2

    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """See `Layer`."""
        self.x = x
        return functional.linear(x, *at)

    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """See `Layer`."""
        self.error = error
        return error if first else error @ at[0]

    def gradients(self) -> list[Tensor]:
        """See `Layer`."""
        return [self.error.t() @ self.x, self.error.sum(0)][: self.tensors]

    def descend(self, at: list[Tensor], rate: Rate) -> None:
        """See `Layer`; the gradient is not stored."""
        scaled = self.error * rate
        at[0].addmm_(scaled.t(), self.x, alpha=-1)
        if self.tensors == 2:
            at[1].sub_(scaled.sum(0))


class Pooling(Layer):
    """`nn.MaxPool2d`."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        size, stride, padding, dilation = (
            [value, value] if isinstance(value, int) else list(value)
            for value in (module.kernel_size, module.stride, module.padding, module.dilation)
        )
        self.how = (size, stride, padding, dilation, module.ceil_mode)

    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """See `Layer`."""
        self.x = x
        outputs: Tensor
        outputs, self.places = aten.max_pool2d_with_indices(x, *self.how)
        return outputs

    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """See `Layer`."""
        found: Tensor = aten.max_pool2d_with_indices_backward(error, self.x, *self.how, self.places)
        return found


class ReLU(Layer):
    """`nn.ReLU`."""

    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """See `Layer`."""
        self.outputs = functional.relu(x)
        return self.outputs

    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """See `Layer`."""
        found: Tensor = aten.threshold_backward(error, self.outputs, 0)
        return found


class Flatten(Layer):
    """`nn.Flatten`."""

    def forward(self, x: Tensor, at: list[Tensor]) -> Tensor:
        """See `Layer`."""
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, error: Tensor, at: list[Tensor], first: bool) -> Tensor:
        """See `Layer`."""
        return error.view(self.shape)


def chain(module: nn.Module) -> list[Layer] | None:
    """Return the layers of a model that is a chain of those above and ends with a linear one; else None."""
    if type(module) is not nn.Sequential or not all(p.requires_grad for p in module.parameters()):
        return None
    layers: list[Layer] = []
    for part in module:
        layer = _layer(part)
        if layer is None:
            return None
        layers.append(layer)
        if len(layers) > 1 and isinstance(layer, Pooling) and isinstance(layers[-2], ReLU):
            layers[-2:] = layers[:-3:-1]
    whole = sum(layer.tensors for layer in layers) == len(
        list(module.parameters())
    )  # no layer is there twice
    return layers if layers and isinstance(layers[-1], Linear) and whole else None


def _layer(part: nn.Module) -> Layer | None:
    if type(part) is nn.Conv2d and part.padding_mode == "zeros":
        padding = _padding(part)
        return None if padding is None else Convolution(part, padding)
    if type(part) is nn.Linear:
        return Linear(part)
    if type(part) is nn.MaxPool2d and not part.return_indices:
        return Pooling(part)
    if type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
        return Flatten()
    return ReLU() if type(part) is nn.ReLU else None


def _padding(module: nn.Conv2d) -> list[int] | None:
    """Return the padding of both sides; None where they differ."""
    if isinstance(module.padding, tuple):
        return list(module.padding)
    both = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    if module.padding == "valid":
        return [0, 0]
    return None if any(total % 2 for total in both) else [total // 2 for total in both]


class Chain(AnyModel):
    """One client after the other.

    Parameters
    ----------
    model
        A chain of layers, see `chain`.

    Raises
    ------
    ValueError
        The model is something else.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        layers = chain(model.module)
        if layers is None:
            raise ValueError(
                "cohort chain: the model is not a chain of layers of known kinds; use cohort loop"
            )
        self.layers = layers
        self.first = next(k for k, layer in enumerate(layers) if layer.tensors)
        self._seen: tuple[Tensor | None, list[list[list[Tensor]]]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients, shape (A, M), and losses, shape (A,), at weights `y`, shape (A, M)."""
        gradients, losses = torch.empty_like(y), y.new_empty(len(y))
        for k, at in enumerate(self._views(y)):
            losses[k] = self._backward(at, batch, k)
            found = (gradient.reshape(-1) for layer in self.layers for gradient in layer.gradients())
            torch.cat(list(found), out=gradients[k])
        return gradients, losses

    def descend(self, y: Tensor, rate: Rate, batch: Batch, besides: Change | None) -> Tensor:
        """Do y -= rate g(y), after `besides` has changed `y`; return the losses, shape (A,)."""
        if besides is not None and len(y) > 1:  # it changes all clients at once
            return super().descend(y, rate, batch, besides)
        losses = y.new_empty(len(y))
        for k, at in enumerate(self._views(y)):
            losses[k] = self._backward(at, batch, k)
            if besides is not None:
                besides(y)
            for layer, tensors in zip(self.layers, at, strict=True):
                layer.descend(tensors, rate[k] if isinstance(rate, Tensor) else rate)
        return losses

    def _views(self, y: Tensor) -> list[list[list[Tensor]]]:
        """Return the tensors of each layer of each client; they are the same from step to step, as a rule."""
        if self._seen[0] is not y:
            views = []
            for row in y:
                tensors = iter(self.model.views(row))
                views.append([[next(tensors) for _ in range(layer.tensors)] for layer in self.layers])
            self._seen = y, views
        return self._seen[1]

    def _backward(self, at: list[list[Tensor]], batch: Batch, k: int) -> Tensor:
        """Do both passes of client k; the layers keep what their gradients take. Return the loss."""
        n = batch.lengths[k]
        x = batch.inputs[k, :n]
        if x.dim() == 4 and x.device.type == "cpu":
            x = x.to(memory_format=torch.channels_last)
        for layer, tensors in zip(self.layers, at, strict=True):
            x = layer.forward(x, tensors)
        error, loss = softmax_errors(x, batch.labels[k, :n], batch.weights[k, :n])
        for position in range(len(self.layers) - 1, self.first - 1, -1):
            error = self.layers[position].backward(error, at[position], position == self.first)
        return loss
