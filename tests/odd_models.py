"""Models that compute with more than the parameters of their layers, as users have them."""

from collections import OrderedDict
from collections.abc import Callable
from inspect import isfunction

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torchvision import models

Builder = Callable[[tuple[int, ...], int], nn.Module]


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _linear(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Linear]:
    layer = nn.Linear(_size(shape), classes)
    return nn.Sequential(nn.Flatten(), layer), layer


def removed_pruning(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")
    return model


def pruned(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    prune.l1_unstructured(layer, "weight", 0.5)
    return model


def old_spectral_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    nn.utils.spectral_norm(layer)
    return model


def old_weight_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    nn.utils.weight_norm(layer)
    return model


def spectral_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    parametrizations.spectral_norm(layer)
    return model


def weight_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    parametrizations.weight_norm(layer)
    return model


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs() - 0.05


def parametrized(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return model


def forward_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    layer.register_forward_hook(lambda part, inputs, outputs: outputs * 3)
    return model


def pre_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    layer.register_forward_pre_hook(lambda part, inputs: (inputs[0] - 0.5,))
    return model


def hook_of_the_whole(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, _ = _linear(shape, classes)
    model.register_forward_hook(lambda part, inputs, outputs: outputs * torch.arange(1.0, classes + 1))
    return model


def backward_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(_size(shape), 8), nn.ReLU(), nn.Linear(8, classes))
    model[3].register_full_backward_hook(lambda part, inputs, outputs: (inputs[0] * 2,))
    return model


def backward_pre_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    layer.register_full_backward_pre_hook(lambda part, outputs: (outputs[0].clamp(-0.01, 0.01),))
    return model


def tensor_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    mask = (torch.arange(_size(shape)) % 2).float()
    layer.weight.register_hook(lambda gradient: gradient * mask)
    return model


def hook_after_accumulation(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)

    def clip(weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad = weight.grad.clamp(-0.01, 0.01)

    layer.weight.register_post_accumulate_grad_hook(clip)
    return model


def own_forward(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight.sign() * 0.1 + layer.weight, layer.bias)  # type: ignore[method-assign]
    return model


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 5 * nn.functional.linear(
            nn.functional.normalize(x), nn.functional.normalize(self.weight), self.bias
        )


def subclass(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Cosine(_size(shape), classes))


class Standardised(nn.Conv2d):
    """Weight standardisation (Qiao et al., 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def subclass_of_convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(Standardised(shape[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


def twice(shape: tuple[int, ...], classes: int) -> nn.Module:
    layer = nn.Linear(16, 16)
    first, last = nn.Linear(_size(shape), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), last)


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers that share a weight but not a bias."""
    layers = [nn.Linear(16, 16) for _ in range(2)]
    layers[1].weight = layers[0].weight
    first, last = nn.Linear(_size(shape), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), last)


def tied_biases(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers that share a bias but not a weight."""
    layers = [nn.Linear(8, 8) for _ in range(2)]
    layers[1].bias = layers[0].bias
    last = nn.Linear(8, classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(shape), 8), nn.ReLU(), *layers, nn.ReLU(), last)


def extra_parameter(shape: tuple[int, ...], classes: int) -> nn.Module:
    model, layer = _linear(shape, classes)
    layer.temperature = nn.Parameter(torch.ones(()))
    layer.register_forward_hook(lambda part, inputs, outputs: outputs * part.temperature)
    return model


def bias_of_one(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One bias for all outputs."""
    model, layer = _linear(shape, classes)
    layer.bias = nn.Parameter(torch.zeros(1))
    return model


def narrowed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Units were taken away, and the layers still say how many there were."""
    layers = nn.Linear(_size(shape), 32), nn.Linear(32, classes)
    layers[0].weight = nn.Parameter(layers[0].weight.detach()[:9].clone())
    layers[0].bias = nn.Parameter(layers[0].bias.detach()[:9].clone())
    layers[1].weight = nn.Parameter(layers[1].weight.detach()[:, :9].clone())
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1])


def frozen_first(shape: tuple[int, ...], classes: int) -> nn.Module:
    first = nn.Linear(_size(shape), 16)
    first.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(16, classes))


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


def buffer_set_anew(shape: tuple[int, ...], classes: int) -> nn.Module:
    size = _size(shape)
    return nn.Sequential(nn.Flatten(), Counting(size), nn.Linear(size, classes))


def cumulative_batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Its mean is over all batches, which an integer buffer counts."""
    size = _size(shape)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size, momentum=None), nn.Linear(size, classes))


def batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    size = _size(shape)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, classes))


def named(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Layers by name, one of them without a bias."""
    layers = OrderedDict(
        flat=nn.Flatten(), first=nn.Linear(_size(shape), 8, bias=False), last=nn.Linear(8, classes)
    )
    return nn.Sequential(layers)


class Forgetful(nn.Module):
    """Clears its gradients in `forward`, as some write it for safety."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        self.zero_grad()
        outputs: Tensor = self.layer(x.flatten(1))
        return outputs


def forgetful(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Forgetful(_size(shape), classes)


class Showing(nn.Module):
    """Keeps what it has computed last, to be looked at, and makes a mask once."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, classes)
        self.mask: Tensor | None = None
        self.shown: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(x[0].numel()) % 3 > 0
        self.shown = [x.flatten(1) * self.mask]
        outputs: Tensor = self.layer(self.shown[0])
        return outputs


def showing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Showing(_size(shape), classes)


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
