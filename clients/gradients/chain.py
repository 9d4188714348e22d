"""Sequences of common layers, one client after the other, with the backward pass written out.

That saves what autograd does besides arithmetic: it builds a graph in every step, and stores gradients to add
them to others. On a CPU, images have their channels last, where pooling is faster; and a ReLU
before max pooling is applied after it, to fewer numbers: the maximum of the ReLUs is the ReLU of the maximum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import CohortOracle
from clients.gradients.proof import plain_sequence
from clients.gradients.random_layers import DrawnLayer, is_dropout
from clients.rules.base import Change
from fedtide.base.errors import SettingsError

aten = torch.ops.aten


class ChainLayer(ABC):
    """A layer that stores what its backward pass needs of the last forward pass; without parameters here."""

    num_params = 0  # tensors
    grads: Sequence[Tensor] = ()  # of these, after the backward pass

    @abstractmethod
    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        """Return the outputs for inputs `x`."""

    @abstractmethod
    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        """Return derivatives with respect to the inputs, given those with respect to the outputs.

        Unless `needs_input_grad`, the result is not used and may be anything.
        """

    def gradients(self) -> Sequence[Tensor]:
        """Return the gradients of the parameters."""
        return self.grads

    def descend(self, params: list[Tensor], rate: Tensor) -> None:
        """Subtract the gradients times `rate`, shape (1,), from the parameters."""
        for tensor, gradient in zip(params, self.gradients(), strict=True):
            tensor.sub_(gradient * rate)


class Convolution(ChainLayer):
    """`nn.Conv2d`."""

    def __init__(self, module: nn.Conv2d, padding: list[int]) -> None:
        self.num_params, self.shape = 1 if module.bias is None else 2, module.weight.shape
        self.bias_sizes = None if module.bias is None else [*module.bias.shape]
        self.options = (list(module.stride), padding, list(module.dilation))
        self.groups, self.channels = module.groups, module.weight.shape[1] * module.groups

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.x = x
        return torch.conv2d(x, params[0], params[1] if self.bias_sizes else None, *self.options, self.groups)

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        wanted = [needs_input_grad, True, self.num_params == 2]
        options = (*self.options, False, [0, 0], self.groups)  # not transposed
        input_grad, *grads = aten.convolution_backward(
            error, self.x, params[0], self.bias_sizes, *options, wanted
        )
        self.grads = grads[: self.num_params]
        return input_grad  # type: ignore[no-any-return]


class Linear(ChainLayer):
    """`nn.Linear`."""

    def __init__(self, module: nn.Linear) -> None:
        self.num_params, self.shape = 1 if module.bias is None else 2, module.weight.shape

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.x = x
        return functional.linear(x, *params)

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        self.error = error
        return error @ params[0] if needs_input_grad else error

    def gradients(self) -> list[Tensor]:
        return [self.error.t() @ self.x, self.error.sum(0)][: self.num_params]

    def descend(self, params: list[Tensor], rate: Tensor) -> None:
        scaled = self.error * rate
        params[0].addmm_(scaled.t(), self.x, alpha=-1)
        if self.num_params == 2:
            params[1].sub_(scaled.sum(0))


class MaxPooling(ChainLayer):
    """`nn.MaxPool2d`."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        size, stride, padding, dilation = (
            list(value) if isinstance(value, tuple | list) else [int(value)] * 2
            for value in (module.kernel_size, module.stride, module.padding, module.dilation)
        )
        self.options = (size, stride, padding, dilation, module.ceil_mode)

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.x = x
        outputs: Tensor
        outputs, self.maxima = aten.max_pool2d_with_indices(x, *self.options)
        return outputs

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        input_grad: Tensor = aten.max_pool2d_with_indices_backward(error, self.x, *self.options, self.maxima)
        return input_grad


class ReLU(ChainLayer):
    """`nn.ReLU`."""

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.outputs = functional.relu(x)
        return self.outputs

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        input_grad: Tensor = aten.threshold_backward(error, self.outputs, 0)
        return input_grad


class Dropout(ChainLayer):
    """`nn.Dropout`."""

    def __init__(self, module: DrawnLayer) -> None:
        self.module = module

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.factors = self.module.factors(x)
        return x if self.factors is None else x * self.factors

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        return error if self.factors is None else error * self.factors


class Flatten(ChainLayer):
    """`nn.Flatten`."""

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        return error.view(self.shape)


def chain_layers(module: nn.Module) -> list[ChainLayer] | None:
    """Return the layers of a sequence of those above that ends with a linear one; None for other models."""
    parts = plain_sequence(module)
    if parts is None:
        return None
    layers: list[ChainLayer] = []
    for part in parts:
        layer = _layer(part)
        if layer is None:
            return None
        layers.append(layer)
        if len(layers) > 1 and isinstance(layer, MaxPooling) and isinstance(layers[-2], ReLU):
            layers[-2:] = layers[:-3:-1]
    return layers if layers and isinstance(layers[-1], Linear) else None


def _layer(part: nn.Module) -> ChainLayer | None:
    if type(part) is nn.Conv2d and part.padding_mode == "zeros":
        padding = _padding(part)
        return None if padding is None else Convolution(part, padding)
    if type(part) is nn.Linear:
        return Linear(part)
    if type(part) is nn.MaxPool2d and not part.return_indices:
        return MaxPooling(part)
    if type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
        return Flatten()
    if is_dropout(part):
        return Dropout(part)
    return ReLU() if type(part) is nn.ReLU else None


def _padding(module: nn.Conv2d) -> list[int] | None:
    """Return the padding of both sides; None if they differ."""
    if isinstance(module.padding, tuple):
        return list(module.padding)
    both = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
    if module.padding == "valid":
        return [0, 0]
    return None if any(total % 2 for total in both) else [total // 2 for total in both]


class Chain(CohortOracle):
    """Convolutions and other common layers in sequence, one client after the other, without autograd."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        layers = chain_layers(model.module)
        if layers is None:
            raise SettingsError("the model is not a sequence of supported layers; use cohort loop")
        self.layers = layers
        self._first = next(k for k, layer in enumerate(layers) if layer.num_params)
        self._last: tuple[Tensor | None, list[list[list[Tensor]]]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        gradients, losses = torch.empty_like(y), y.new_empty(len(y))
        for k, params in enumerate(self._params(y)):
            losses[k] = self._backpropagate(params, batch, k)
            parts = [gradient.reshape(-1) for layer in self.layers for gradient in layer.gradients()]
            torch.cat(parts, out=gradients[k])
        return gradients, losses

    def descend(self, y: Tensor, rate: Tensor, batch: Batch, change: Change | None) -> Tensor:
        if change is not None:  # it changes all clients at once
            return super().descend(y, rate, batch, change)
        losses = y.new_empty(len(y))
        for k, params in enumerate(self._params(y)):
            losses[k] = self._backpropagate(params, batch, k)
            for layer, tensors in zip(self.layers, params, strict=True):
                layer.descend(tensors, rate[k])
        return losses

    def arranged(self, x: Tensor) -> Tensor:
        """Return a batch in the memory format that suits the layers: on a CPU, images with channels last."""
        of_images = x.dim() == 4 and x.device.type == "cpu"
        return x.to(memory_format=torch.channels_last) if of_images else x

    def _params(self, y: Tensor) -> list[list[list[Tensor]]]:
        """Return the parameters of each client's layers; cached, as `y` is usually that of the last step."""
        if self._last[0] is not y:
            clients = []
            for row in y:
                tensors = iter(self.model.views(row))
                clients.append([[next(tensors) for _ in range(layer.num_params)] for layer in self.layers])
            self._last = y, clients
        return self._last[1]

    def _backpropagate(self, params: list[list[Tensor]], batch: Batch, k: int) -> Tensor:
        """Do both passes of client k, after which the layers have their gradients; return the loss."""
        n = batch.lengths[k]
        self.model.random.begin(batch.seed(k), self.model.device)
        x = self.arranged(batch.inputs[k, :n])
        for layer, tensors in zip(self.layers, params, strict=True):
            x = layer.forward(x, tensors)
        error, loss = self.model.criterion.error(x, batch.targets[k, :n], batch.weights[k, :n])
        for position in range(len(self.layers) - 1, self._first - 1, -1):
            error = self.layers[position].backward(error, params[position], position > self._first)
        return loss
