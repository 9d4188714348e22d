"""Convolutional models without residual connections."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from flexfl.tasks.layers import image_shape, normalisation, share, start_for_relu, whole_numbers

if TYPE_CHECKING:
    from torch import nn


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Two 5x5 convolutions (32, 64) with max pooling, then 512 units: the CNN of McMahan et al.

    Parameters
    ----------
    input_shape : tuple of int
        Channels, height and width of an image, at least 4x4 pixels.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If the inputs are not images, or are too small.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3: 1,663,370 parameters on 28x28 images, which implies that
    the convolutions preserve the size of the image ("same" padding).
    """
    from torch import nn

    channels, height, width = image_shape("cnn", input_shape)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, num_outputs),
    )


def lenet(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    padding: Annotated[int, "0 | 2"] = 2,
) -> nn.Module:
    """Two 5x5 convolutions (6, 16) with max pooling, then 120 and 84 units: LeNet-5 with ReLU.

    The first convolution pads by 2, which turns 28x28 images into the paper's 32x32 (61,706
    parameters). On images of 32x32 pixels and padding=0 it is the CNN of PyTorch's CIFAR tutorial (62,006
    parameters). The second pads only images smaller than 12 pixels, such as 8x8 digits, where a 5x5
    window would leave nothing to pool.

    Parameters
    ----------
    input_shape : tuple of int
        Channels, height and width of an image, at least 4x4 pixels.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.
    padding : int
        Pixels by which the first convolution pads the images.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If the inputs are not images, or are too small.

    References
    ----------
    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    from torch import nn

    channels, height, width = image_shape("lenet", input_shape)
    if padding not in (0, 2):
        raise ValueError(f"model lenet: padding must be 0 or 2, not {padding}")
    least = 16 - 2 * padding  # of which the second convolution and its pooling leave a pixel
    second = 0 if min(height, width) >= least else 2
    pooled = [((side - 4 + 2 * padding) // 2 - 4 + 2 * second) // 2 for side in (height, width)]
    if min(pooled) < 1:
        raise ValueError(f"model lenet: padding=0 needs images of at least 8x8 pixels, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=second),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * pooled[0] * pooled[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_outputs),
    )


def cnn3x3(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    hidden: str = "256+64",
    dropout: Annotated[float, "from 0, below 1"] = 0.0,
) -> nn.Module:
    """Two 3x3 convolutions (32, 32) with max pooling, then hidden layers: the CNN of FedAU and FedAWE.

    On CIFAR-10 as it is (551,786 parameters); SVHN has hidden=128, CINIC-10 hidden=512+256 and dropout=0.2.

    Parameters
    ----------
    input_shape : tuple of int
        Channels, height and width of an image, at least 4x4 pixels.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.
    hidden : str
        Units of the hidden layers, with `+` between them.
    dropout : float
        Share of the inputs of each linear layer that is dropped in training.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If the inputs are not images, or an option is impossible.

    References
    ----------
    Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging,
    ICLR 2024: the model of the authors' code.
    """
    from torch import nn

    channels, height, width = image_shape("cnn3x3", input_shape)
    units = whole_numbers("model cnn3x3: hidden", hidden)
    dropped = share("model cnn3x3: dropout", dropout)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dropout(dropped),
    ]
    for inputs, outputs in pairwise([32 * (height // 4) * (width // 4), *units]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *_dropout(dropped)]
    for layer in layers:
        start_for_relu(layer, "fan_in")
    return nn.Sequential(*layers, nn.Linear(units[-1], num_outputs))


def vgg11(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    norm: Annotated[str, "none | group | batch"] = "none",
    dropout: Annotated[float, "from 0, below 1"] = 0.0,
    width: Annotated[int, "at least 1"] = 64,
    hidden: Annotated[int, "at least 0"] = 512,
) -> nn.Module:
    """Eight 3x3 convolutions and three linear layers: VGG-11 for small images.

    On 32x32 images with 10 classes it has 9,750,922 parameters. Pooling rounds up, so that smaller images are
    not pooled to nothing.

    Parameters
    ----------
    input_shape : tuple of int
        Channels, height and width of an image, at least 4x4 pixels.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.
    norm : str
        Normalisation after each convolution.
    dropout : float
        Share of the inputs of the hidden layers that is dropped in training; 0.5 in the paper.
    width : int
        Channels of the first convolution; the last ones have eight times as many. 32 halves the model.
    hidden : int
        Units of the two hidden layers; 0: there are none.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If the inputs are not images, or an option is impossible.

    References
    ----------
    Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
    configuration A, with the hidden layers that are usual on CIFAR-10.
    """
    from torch import nn

    channels, *sides = image_shape("vgg11", input_shape)
    dropped = share("model vgg11: dropout", dropout)
    if width < 1 or hidden < 0:
        raise ValueError(
            f"model vgg11: width must be at least 1 and hidden at least 0, not {width} and {hidden}"
        )
    layers: list[nn.Module] = []
    for stage in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
        for factor in stage:
            layers.append(nn.Conv2d(channels, factor * width, 3, padding=1))
            layers += [*normalisation("model vgg11: norm", norm, factor * width), nn.ReLU()]
            channels = factor * width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
        sides = [-(-side // 2) for side in sides]
    layers.append(nn.Flatten())
    units = channels * sides[0] * sides[1]
    for _ in range(2 if hidden else 0):
        layers += [*_dropout(dropped), nn.Linear(units, hidden), nn.ReLU()]
        units = hidden
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            start_for_relu(layer)
    return nn.Sequential(*layers, nn.Linear(units, num_outputs))


def _dropout(dropped: float) -> list[nn.Module]:
    from torch import nn

    return [nn.Dropout(dropped)] if dropped else []
