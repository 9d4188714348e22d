"""The models that the clients train."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from torch import nn


def initialise(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a model whose initial parameters depend only on the seed.

    Parameters
    ----------
    build : callable
        Returns a new model, initialised by PyTorch's default generator.
    seed : int
        Seed >= 0 of the run.

    Returns
    -------
    torch.nn.Module
        The model; the states of PyTorch's generators are unchanged.
    """
    # torch.manual_seed would also reseed the accelerators, which this fork does not restore.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(np.random.default_rng([seed, *b"model"]).integers(2**63)))
        return build()


def logistic(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """One linear layer: multinomial logistic regression, or for numbers linear regression.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_outputs))


def mlp(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    hidden: Annotated[int, "at least 1"] = 200,
) -> nn.Module:
    """Two hidden layers of ReLU units: the 2NN of McMahan et al.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.
    hidden : int
        Units per hidden layer.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If `hidden` is below 1.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3: 199,210 parameters on 28x28 images.
    """
    if hidden < 1:
        raise ValueError(f"model mlp: hidden must be at least 1, not {hidden}")
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(int(np.prod(input_shape)), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_outputs),
    )


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
    channels, height, width = _image("cnn", input_shape)
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


def lenet(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Two 5x5 convolutions (6, 16) with max pooling, then 120 and 84 units: LeNet-5 with ReLU.

    The first convolution pads by 2, which turns 28x28 images into the paper's 32x32 (61,706
    parameters). The second pads only images smaller than 12 pixels, such as 8x8 digits, where a 5x5
    window would leave nothing to pool.

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
    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    channels, height, width = _image("lenet", input_shape)
    padding = 0 if min(height, width) >= 12 else 2
    pooled = [(side // 2 - 4 + 2 * padding) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * pooled[0] * pooled[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_outputs),
    )


MODELS: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn, "lenet": lenet}
"""Models by name: ``(input_shape, num_outputs, *, options)``."""


def _image(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(
            f"model {model}: inputs must be images of at least 4x4 pixels, not of shape {input_shape}; "
            f"use logistic or mlp"
        )
    return input_shape
