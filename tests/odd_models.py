"""Models that compute with more than the parameters of their layers, as users have them."""

from collections import OrderedDict
from collections.abc import Callable
from inspect import isfunction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torchvision import models

Builder = Callable[[tuple[int, ...], int], nn.Module]


def _sequence(make: Callable[[int, int], list[nn.Module]]) -> Builder:
    """A sequence of layers, given the numbers of inputs and of classes."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *make(int(np.prod(shape)), classes))

    return build


def _changed(change: Callable[[nn.Module, nn.Linear], Any]) -> Builder:
    """A linear model after a change to it or to its layer."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        layer = nn.Linear(int(np.prod(shape)), classes)
        model = nn.Sequential(nn.Flatten(), layer)
        change(model, layer)
        return model

    return build


# What computes the weight

pruned = _changed(lambda model, layer: prune.l1_unstructured(layer, "weight", 0.5))
old_spectral_norm = _changed(lambda model, layer: nn.utils.spectral_norm(layer))
old_weight_norm = _changed(lambda model, layer: nn.utils.weight_norm(layer))
spectral_norm = _changed(lambda model, layer: parametrizations.spectral_norm(layer))
weight_norm = _changed(lambda model, layer: parametrizations.weight_norm(layer))


@_changed
def removed_pruning(model: nn.Module, layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs() - 0.05


parametrized = _changed(
    lambda model, layer: parametrize.register_parametrization(layer, "weight", Symmetric())
)

# Hooks

forward_hook = _changed(lambda model, layer: layer.register_forward_hook(lambda part, x, y: y * 3))
pre_hook = _changed(lambda model, layer: layer.register_forward_pre_hook(lambda part, x: (x[0] - 0.5,)))
hook_of_the_whole = _changed(
    lambda model, layer: model.register_forward_hook(
        lambda part, x, y: y * torch.arange(1.0, layer.out_features + 1)
    )
)
backward_pre_hook = _changed(
    lambda model, layer: layer.register_full_backward_pre_hook(lambda part, y: (y[0].clamp(-0.01, 0.01),))
)


@_sequence
def backward_hook(size: int, classes: int) -> list[nn.Module]:
    last = nn.Linear(8, classes)
    last.register_full_backward_hook(lambda part, inputs, outputs: (inputs[0] * 2,))
    return [nn.Linear(size, 8), nn.ReLU(), last]


@_changed
def tensor_hook(model: nn.Module, layer: nn.Linear) -> None:
    mask = (torch.arange(layer.in_features) % 2).float()
    layer.weight.register_hook(lambda gradient: gradient * mask)


@_changed
def hook_after_accumulation(model: nn.Module, layer: nn.Linear) -> None:
    def clip(weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad = weight.grad.clamp(-0.01, 0.01)

    layer.weight.register_post_accumulate_grad_hook(clip)


# Layers of one's own


@_changed
def own_forward(model: nn.Module, layer: Any) -> None:
    layer.forward = lambda x: nn.functional.linear(x, layer.weight.sign() * 0.1 + layer.weight, layer.bias)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        normalize = nn.functional.normalize
        return 5 * nn.functional.linear(normalize(x), normalize(self.weight), self.bias)


subclass = _sequence(lambda size, classes: [Cosine(size, classes)])


class Standardised(nn.Conv2d):
    """Weight standardisation (Qiao et al., 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def subclass_of_convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(Standardised(shape[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


class Perceptron(nn.Sequential):
    """Makes its layers itself, as torchvision's MLP does."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, classes))


class Sharp(Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def subclass_of_sequence(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Perceptron(int(np.prod(shape)), classes)


def sequence_with_own_forward(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Sharp(int(np.prod(shape)), classes)


# Weights that are shared, added, cut or frozen


@_sequence
def twice(size: int, classes: int) -> list[nn.Module]:
    layer = nn.Linear(16, 16)
    return [nn.Linear(size, 16), nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(16, classes)]


@_sequence
def tied(size: int, classes: int) -> list[nn.Module]:
    """Two layers that share a weight but not a bias."""
    one, other = nn.Linear(16, 16), nn.Linear(16, 16)
    other.weight = one.weight
    return [nn.Linear(size, 16), nn.ReLU(), one, nn.ReLU(), other, nn.ReLU(), nn.Linear(16, classes)]


@_sequence
def tied_biases(size: int, classes: int) -> list[nn.Module]:
    """Two layers that share a bias but not a weight."""
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    other.bias = one.bias
    return [nn.Linear(size, 8), nn.ReLU(), one, other, nn.ReLU(), nn.Linear(8, classes)]


@_changed
def extra_parameter(model: nn.Module, layer: nn.Linear) -> None:
    layer.temperature = nn.Parameter(torch.ones(()))
    layer.register_forward_hook(lambda part, inputs, outputs: outputs * part.temperature)


@_changed
def bias_of_one(model: nn.Module, layer: nn.Linear) -> None:
    """One bias for all outputs."""
    layer.bias = nn.Parameter(torch.zeros(1))


@_sequence
def narrowed(size: int, classes: int) -> list[nn.Module]:
    """Units were taken away, and the layers still say how many there were."""
    first, last = nn.Linear(size, 32), nn.Linear(32, classes)
    first.weight = nn.Parameter(first.weight.detach()[:9].clone())
    first.bias = nn.Parameter(first.bias.detach()[:9].clone())
    last.weight = nn.Parameter(last.weight.detach()[:, :9].clone())
    return [first, nn.ReLU(), last]


frozen_first = _sequence(
    lambda size, classes: [nn.Linear(size, 16).requires_grad_(False), nn.ReLU(), nn.Linear(16, classes)]
)


def named(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Layers by name, one of them without a bias."""
    first, last = nn.Linear(int(np.prod(shape)), 8, bias=False), nn.Linear(8, classes)
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), first=first, last=last))


FIXED = nn.Linear(16, 16).requires_grad_(False)  # the same in all models, which do not change it


@_sequence
def interleaved(size: int, classes: int) -> list[nn.Module]:
    """Weights that lie in one tensor, column by column, but share no number; and a part made once."""
    layers = [nn.Linear(size, 8), nn.Linear(8, 16)]
    whole = torch.randn(16, size + 8) / 16
    layers[0].weight = nn.Parameter(whole[:8, 8:])
    layers[1].weight = nn.Parameter(whole[:, :8])
    return [layers[0], nn.Tanh(), layers[1], nn.Tanh(), FIXED, nn.Linear(16, classes)]


@_sequence
def scripted(size: int, classes: int) -> list[nn.Module]:
    """TorchScript, with buffers."""
    return [torch.jit.script(nn.Sequential(nn.Linear(size, 8), nn.BatchNorm1d(8))), nn.Linear(8, classes)]  # type: ignore[no-untyped-call]


class Graph(nn.Linear):
    """Sums over neighbours first; which they are is a sparse buffer."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__(size, classes)
        self.register_buffer("edges", torch.eye(size, dtype=torch.int64).roll(1, 0).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((self.edges.to(x.dtype) @ x.T).T)


graph = _sequence(lambda size, classes: [Graph(size, classes)])


# What is kept from batch to batch


class Counting(nn.Module):
    """Keeps a mean of its inputs as many users write it: a buffer that is set anew, and a count of steps."""

    mean: Tensor
    steps: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps = self.steps + 1
            self.mean = self.mean + (x.mean(0) - self.mean) / (self.steps + 4)
        return x - self.mean


buffer_set_anew = _sequence(lambda size, classes: [Counting(size), nn.Linear(size, classes)])
batch_norm = _sequence(lambda size, classes: [nn.BatchNorm1d(size), nn.Linear(size, classes)])
cumulative_batch_norm = _sequence(  # its mean is over all batches, which an integer buffer counts
    lambda size, classes: [nn.BatchNorm1d(size, momentum=None), nn.Linear(size, classes)]
)


class Limited(nn.Linear):
    """Keeps the norms of its weights small by setting them anew, as EEGNet's layers do."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.1)
        return super().forward(x)


class Clamped(nn.Linear):
    """Keeps its weights small in place."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.02, 0.02)
        return super().forward(x)


norms_limited = _sequence(lambda size, classes: [nn.Linear(size, 8), nn.ELU(), Limited(8, classes)])
clamped_with_buffers = _sequence(lambda size, classes: [nn.BatchNorm1d(size), Clamped(size, classes)])


class RarelyNoisy(nn.Linear):
    """Draws noise only for the examples that have something to hide: for zeros it draws nothing."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = x > 0.5
        if self.training:
            x = x.masked_scatter(hidden, x[hidden] + torch.randn(int(hidden.sum())))
        return super().forward(x)


noise_for_some = _sequence(lambda size, classes: [RarelyNoisy(size, classes)])


class Forgetful(nn.Linear):
    """Clears its gradients in `forward`, as some write it for safety."""

    def forward(self, x: Tensor) -> Tensor:
        self.zero_grad()
        return super().forward(x.flatten(1))


def forgetful(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Forgetful(int(np.prod(shape)), classes)


class Showing(nn.Linear):
    """Keeps what it has computed last, to be looked at, and makes a mask once."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(x[0].numel()) % 3 > 0
        self.shown = [x.flatten(1) * self.mask]
        return super().forward(self.shown[0])


def showing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Showing(int(np.prod(shape)), classes)


class Coloured(nn.Module):
    """Gives a model of large coloured images small grey ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(nn.functional.interpolate(x, (32, 32)).expand(-1, 3, -1, -1))
        return outputs


def vision_transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Coloured(models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=classes))


ODD: dict[str, Builder] = {
    name: made
    for name, made in vars().copy().items()
    if isfunction(made) and made.__module__ == __name__ and not name.startswith("_")
}
"""The models by name."""
