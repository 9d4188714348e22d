"""Chains whose convolutions and poolings are compiled, with the examples of a batch innermost."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clients.gradients.chain import Chain, ChainLayer, Convolution, Flatten, MaxPooling, ReLU
from clients.gradients.flat import FlatModel
from fedtide.base.errors import SettingsError

MAX_CHANNELS = 12  # that a convolution may have as inputs: with 16, libraries are faster


class CompiledConvolution(ChainLayer):
    """A convolution with a stride of 1, for images of shape (channels, height, width, B)."""

    def __init__(self, layer: Convolution, kernels: ModuleType) -> None:
        self.kernels, self.num_params = kernels, layer.num_params
        self.rows, self.columns = layer.options[1]  # of zeros on each side

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        if len(x) != params[0].shape[1]:
            raise ValueError(f"a convolution of {params[0].shape[1]} channels gets images of {len(x)}")
        if self.rows or self.columns:
            x = functional.pad(x, (0, 0, self.columns, self.columns, self.rows, self.rows))
        self.x, weight = x, params[0]
        height, width = x.shape[1] - weight.shape[2] + 1, x.shape[2] - weight.shape[3] + 1
        out = x.new_empty(weight.shape[0], height, width, x.shape[3])
        bias = params[1] if self.num_params == 2 else x.new_empty(0)
        self.kernels.convolve(_flat(x), weight.numpy(), bias.numpy(), x.shape[3], _flat(out))
        return out

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        batch = error.shape[3]
        weight_grad = torch.empty_like(params[0])
        self.kernels.weight_gradient(_flat(self.x), _flat(error), batch, weight_grad.numpy())
        self.grads = [weight_grad, error.sum((1, 2, 3))][: self.num_params]
        if not needs_input_grad:
            return error
        input_grad = torch.empty_like(self.x)
        weight = params[0].permute(1, 3, 2, 0).contiguous()
        self.kernels.input_gradient(_flat(error), weight.numpy(), batch, _flat(input_grad))
        if self.rows or self.columns:
            _, height, width, _ = input_grad.shape
            input_grad = input_grad[:, self.rows : height - self.rows, self.columns : width - self.columns]
        return input_grad.contiguous()


class CompiledPooling(ChainLayer):
    """Max pooling of squares of 2 times 2 pixels, for images of shape (channels, height, width, B)."""

    def __init__(self, kernels: ModuleType) -> None:
        self.kernels = kernels

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.shape = x.shape
        channels, height, width, batch = x.shape
        out = x.new_empty(channels, height // 2, width // 2, batch)
        self.where = torch.empty_like(out, dtype=torch.uint8)
        self.kernels.pool(_flat(x), batch, _flat(out), _flat(self.where))
        return out

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        out = error.new_empty(self.shape)
        self.kernels.unpool(_flat(error), _flat(self.where), self.shape[3], _flat(out))
        return out


class ExamplesFirst(ChainLayer):
    """`nn.Flatten` of images of shape (channels, height, width, B)."""

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        self.shape = x.shape
        return x.view(-1, x.shape[3]).t().contiguous()

    def backward(self, error: Tensor, params: list[Tensor], needs_input_grad: bool) -> Tensor:
        return error.t().contiguous().view(self.shape)


def _flat(x: Tensor) -> NDArray[Any]:
    """Return images of shape (channels, height, width, B) as an array (channels, height, width * B)."""
    return x.view(x.shape[0], x.shape[1], -1).numpy()


class CompiledChain(Chain):
    """A chain of convolutions, max pooling and ReLUs, then linear layers; images have their examples last."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        end = next((i for i, layer in enumerate(self.layers) if isinstance(layer, Flatten)), -1) + 1
        fits = end > 0 and all(map(_is_supported, self.layers[:end]))
        if not fits or model.device.type != "cpu" or model.vector.dtype not in (torch.float32, torch.float64):
            raise SettingsError(
                "the model is not a sequence of convolutions of stride 1 and at most "
                f"{MAX_CHANNELS} input channels, pooling of 2 x 2 pixels and ReLUs, then linear layers, in "
                "single or double precision on a CPU; use cohort chain"
            )
        try:
            from clients.gradients import convolutions
        except ImportError as error:
            raise SettingsError(f"{error}; pip install numba, or use cohort chain") from None
        self.layers[:end] = [_compiled(layer, convolutions) for layer in self.layers[:end]]

    def arranged(self, x: Tensor) -> Tensor:
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x))  # faster than to permute dimensions


def _is_supported(layer: ChainLayer) -> bool:
    """Whether a layer of images has a compiled form, or needs none."""
    if isinstance(layer, Convolution):
        stride, _, dilation = layer.options
        return stride == dilation == [1, 1] and layer.groups == 1 and layer.channels <= MAX_CHANNELS
    if isinstance(layer, MaxPooling):
        size, stride, padding, dilation, ceil = layer.options
        return size == stride == [2, 2] and padding == [0, 0] and dilation == [1, 1] and not ceil
    return isinstance(layer, ReLU | Flatten)


def _compiled(layer: ChainLayer, kernels: ModuleType) -> ChainLayer:
    if isinstance(layer, Convolution):
        return CompiledConvolution(layer, kernels)
    if isinstance(layer, MaxPooling):
        return CompiledPooling(kernels)
    return ExamplesFirst() if isinstance(layer, Flatten) else layer
