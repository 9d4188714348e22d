"""Convolutional models, with residual connections and without."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from fedtide.base.allowed import Count, CountOrZero, Range, checked
from fedtide.base.errors import SettingsError

if TYPE_CHECKING:
    from torch import nn

Dropout = Annotated[float, Range(least=0, below=1)]
Norm = Literal["group", "batch", "none"]
"""Normalisation: groups of 16 channels (Wu and He, 2018), which keep examples independent and need no running
statistics; or batches; or none."""


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Two 5x5 convolutions (32, 64) with max pooling, then 512 units: the CNN of McMahan et al.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3: 1,663,370 parameters on 28x28 images, which implies that
    the convolutions preserve the size of the image ("same" padding).
    """
    from torch import nn

    channels, height, width = _image_shape("cnn", input_shape)
    return nn.Sequential(
        *_pooled(nn.Conv2d(channels, 32, 5, padding="same"), nn.Conv2d(32, 64, 5, padding="same")),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, num_outputs),
    )


@checked
def lenet(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    padding: Literal[0, 2] = 2,
) -> nn.Module:
    """Two 5x5 convolutions (6, 16) with max pooling, then 120 and 84 units: LeNet-5 with ReLU.

    The first convolution pads by 2, which turns 28x28 images into the paper's 32x32 (61,706
    parameters). On images of 32x32 pixels and padding=0 it is the CNN of PyTorch's CIFAR tutorial (62,006
    parameters). The second pads only images smaller than 12 pixels, such as 8x8 digits, where a 5x5
    window would leave nothing to pool.

    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.

    Parameters
    ----------
    padding
        Pixels by which the first convolution pads the images.
    """
    from torch import nn

    channels, height, width = _image_shape("lenet", input_shape)
    least = 16 - 2 * padding  # of which the second convolution and its pooling leave a pixel
    second = 0 if min(height, width) >= least else 2
    sides = [((side - 4 + 2 * padding) // 2 - 4 + 2 * second) // 2 for side in (height, width)]
    if min(sides) < 1:
        raise SettingsError(
            f"model lenet: padding=0 needs images of at least 8x8 pixels, not {height}x{width}"
        )
    return nn.Sequential(
        *_pooled(nn.Conv2d(channels, 6, 5, padding=padding), nn.Conv2d(6, 16, 5, padding=second)),
        nn.Linear(16 * sides[0] * sides[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_outputs),
    )


@checked
def cnn3x3(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    hidden: str = "256+64",
    dropout: Dropout = 0.0,
    norm: Norm = "none",
) -> nn.Module:
    """Two 3x3 convolutions (32, 32) with max pooling, then hidden layers: the CNN of FedAU and FedAWE.

    On CIFAR-10 by default (551,786 parameters); SVHN has hidden=128, CINIC-10 hidden=512+256 and dropout=0.2.

    Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging,
    ICLR 2024: the model of the authors' code.

    Parameters
    ----------
    hidden
        Units of the hidden layers, with `+` between them.
    dropout
        Share of the inputs of each linear layer that is dropped in training.
    norm
        Normalisation after each convolution.
    """
    from torch import nn

    channels, height, width = _image_shape("cnn3x3", input_shape)
    units = _units(hidden)
    layers = _pooled(nn.Conv2d(channels, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1), norm=norm)
    layers += _dropout(dropout)
    for inputs, outputs in pairwise([32 * (height // 4) * (width // 4), *units]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *_dropout(dropout)]
    for layer in layers:
        _start_for_relu(layer, "fan_in")
    return nn.Sequential(*layers, nn.Linear(units[-1], num_outputs))


@checked
def vgg11(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    norm: Norm = "none",
    dropout: Dropout = 0.0,
    width: Count = 64,
    hidden: CountOrZero = 512,
) -> nn.Module:
    """Eight 3x3 convolutions and three linear layers: VGG-11 for small images.

    On 32x32 images with 10 classes it has 9,750,922 parameters. Pooling rounds up, so that smaller images are
    not pooled to nothing.

    Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
    configuration A, with the hidden layers that are usual on CIFAR-10.

    Parameters
    ----------
    norm
        Normalisation after each convolution.
    dropout
        Share of the inputs of the hidden layers that is dropped in training; 0.5 in the paper.
    width
        Channels of the first convolution; the last ones have eight times as many. 32 halves the model.
    hidden
        Units of the two hidden layers; 0: no hidden layers.
    """
    from torch import nn

    channels, *sides = _image_shape("vgg11", input_shape)
    layers: list[nn.Module] = []
    for stage in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
        for factor in stage:
            layers.append(nn.Conv2d(channels, factor * width, 3, padding=1))
            layers += [*_normalisation(norm, factor * width), nn.ReLU()]
            channels = factor * width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
        sides = [-(-side // 2) for side in sides]
    layers.append(nn.Flatten())
    units = channels * sides[0] * sides[1]
    for _ in range(2 if hidden else 0):
        layers += [*_dropout(dropout), nn.Linear(units, hidden), nn.ReLU()]
        units = hidden
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            _start_for_relu(layer)
    return nn.Sequential(*layers, nn.Linear(units, num_outputs))


@checked
def resnet18(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    norm: Norm = "group",
    width: Count = 64,
) -> nn.Module:
    """Residual network of 18 layers for small images: its first convolution is 3x3, without pooling.

    On 32x32 images with 10 classes it has 11,173,962 parameters.

    He et al., Deep Residual Learning for Image Recognition, CVPR 2016; group normalisation as in Hsieh et
    al., The Non-IID Data Quagmire of Decentralized Machine Learning, ICML 2020.

    Parameters
    ----------
    norm
        Normalisation after each convolution.
    width
        Channels of the first stage; the last one has eight times as many.
    """
    return _network("resnet18", input_shape, num_outputs, norm, width, (2, 2, 2, 2), bottleneck=False)


@checked
def resnet50(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    norm: Norm = "group",
    width: Count = 64,
) -> nn.Module:
    """Residual network of 50 layers for small images: its first convolution is 3x3, without pooling.

    On 32x32 images with 10 classes it has 23,520,842 parameters.

    He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Parameters
    ----------
    norm
        Normalisation after each convolution.
    width
        Channels within the first stage's blocks; the last one's have eight times as many.
    """
    return _network("resnet50", input_shape, num_outputs, norm, width, (3, 4, 6, 3), bottleneck=True)


def _network(
    name: str,
    input_shape: tuple[int, ...],
    num_outputs: int,
    norm: Norm,
    width: int,
    blocks: tuple[int, ...],
    bottleneck: bool,
) -> nn.Module:
    from torch import nn

    from fedtide.tasks.modules import Block

    channels, _, _ = _image_shape(name, input_shape)
    layers: list[nn.Module] = [*_convolution(norm, channels, width, 3), nn.ReLU()]
    channels = width
    for stage, count in enumerate(blocks):
        inner = width << stage
        outputs = 4 * inner if bottleneck else inner
        for position in range(count):
            stride = 2 if stage and not position else 1
            if bottleneck:
                steps = [(channels, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
            else:
                steps = [(channels, inner, 3, stride), (inner, outputs, 3, 1)]
            main: list[nn.Module] = []
            for step in steps:
                main += [*_convolution(norm, *step), nn.ReLU()]
            main.pop()  # the last ReLU comes after the sum
            same = stride == 1 and channels == outputs
            shortcut = [] if same else _convolution(norm, channels, outputs, 1, stride)
            layers.append(Block(main, shortcut))
            channels = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.apply(_start_for_relu)
    return model.append(nn.Linear(channels, num_outputs))


def _convolution(norm: Norm, inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its normalisation, which makes its bias superfluous."""
    from torch import nn

    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=norm == "none")
    return [layer, *_normalisation(norm, outputs)]


def _image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width; raise ValueError unless inputs are images of at least 4x4 pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise SettingsError(
            f"model {model}: inputs must be images of at least 4x4 pixels, not of shape {input_shape}; "
            f"use logistic or mlp"
        )
    return input_shape


def _normalisation(norm: Norm, channels: int) -> list[nn.Module]:
    """Return the layers that normalise this many channels: one, or none."""
    from torch import nn

    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "group":
        return [nn.GroupNorm(channels // 16 if channels % 16 == 0 else 1, channels)]
    return []


def _pooled(*convolutions: nn.Conv2d, norm: Norm = "none") -> list[nn.Module]:
    """Return convolutions, each normalised, with ReLU and max pooling, and what makes vectors of the last."""
    from torch import nn

    layers: list[nn.Module] = []
    for layer in convolutions:
        layers += [layer, *_normalisation(norm, layer.out_channels), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten()]


def _dropout(probability: float) -> list[nn.Module]:
    """Return a layer of dropout, or none for a probability of 0."""
    from torch import nn

    return [nn.Dropout(probability)] if probability else []


def _start_for_relu(module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of a convolution or linear layer as He et al. (2015) do; its biases are 0."""
    from torch import nn

    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _units(hidden: str) -> list[int]:
    """Return the numbers of a text such as ``256+64``."""
    parts = [part.strip() for part in hidden.split("+")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:8]) <= 10**6 for part in parts):
        raise SettingsError(
            f"model cnn3x3: hidden is {hidden!r}; it must be whole numbers of at least 1 with + between them"
        )
    return [int(part) for part in parts]
