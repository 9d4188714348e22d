"""The models that the clients train, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import numpy as np

from flexfl.tasks.convolutions import cnn, cnn3x3, lenet, vgg11
from flexfl.tasks.recurrent import lstm
from flexfl.tasks.residual import resnet18, resnet50

if TYPE_CHECKING:  # a model imports PyTorch when it is built: lists of models do not need it
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
    import torch

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
    from torch import nn

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
    from torch import nn

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


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "cnn3x3": cnn3x3,
    "vgg11": vgg11,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "lstm": lstm,
}
"""Models by name: ``(input_shape, num_outputs, *, options)``."""
