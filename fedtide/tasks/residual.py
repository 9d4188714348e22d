"""Residual networks for small images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtide.ground.allowed import Count, checked
from fedtide.tasks.layers import Norm, image_shape, normalisation, start_for_relu

if TYPE_CHECKING:
    from torch import nn


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

    channels, _, _ = image_shape(name, input_shape)
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
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            start_for_relu(module)
    return model.append(nn.Linear(channels, num_outputs))


def _convolution(norm: Norm, inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its normalisation, which makes its bias superfluous."""
    from torch import nn

    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=norm == "none")
    return [layer, *normalisation(norm, outputs)]
