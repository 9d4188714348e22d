"""The models that the clients train, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import numpy as np

from fedtide.base.allowed import Count, CountOrZero, Range, checked
from fedtide.base.errors import SettingsError
from fedtide.tasks.convolutions import cnn, cnn3x3, lenet, resnet18, resnet50, vgg11
from fedtide.tasks.language_models import hf_lm

if TYPE_CHECKING:  # a model imports PyTorch when it is built: lists of models do not need it
    from torch import nn


def initialise(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a model whose initial parameters depend only on the seed of the run.

    `build` returns a new model, initialised by PyTorch's default generator, whose state does not change.
    """
    import torch

    # torch.manual_seed would also reseed the accelerators, which this fork does not restore.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(np.random.default_rng([seed, *b"model"]).integers(2**63)))
        return build()


def logistic(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """One linear layer: multinomial logistic regression, or for numbers linear regression."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_outputs))


@checked
def mlp(input_shape: tuple[int, ...], num_outputs: int, *, hidden: Count = 200) -> nn.Module:
    """Two hidden layers of ReLU units: the 2NN of McMahan et al.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, section 3: 199,210 parameters on 28x28 images.

    Parameters
    ----------
    hidden
        Units per hidden layer.
    """
    from torch import nn

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(int(np.prod(input_shape)), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_outputs),
    )


@checked
def lstm(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    embedding: Count = 8,
    hidden: Count = 256,
    layers: Count = 2,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    vocabulary: CountOrZero = 0,
) -> nn.Module:
    """Long short-term memory over a text, and a linear layer on its last output.

    By default it is McMahan et al.'s and LEAF's model of the next character (819,920 parameters with 80
    characters). Words that come as vectors, such as those of GloVe, need no embedding.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    section 3; Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    Parameters
    ----------
    input_shape, num_outputs
        See `MODELS`; (L,) for the numbers of L characters or words, or (L, D) for vectors of L words.
    embedding
        Length of the vectors that it learns for characters or words.
    hidden, layers
        Units of each layer, and number of layers.
    dropout
        Share of each layer's outputs that is dropped in training, except those of the last one.
    vocabulary
        Number of different characters or words; 0: the task's.

    Raises
    ------
    ValueError
        The inputs are not texts, or have no vocabulary.
    """
    from torch import nn

    from fedtide.tasks.modules import Recurrent

    if len(input_shape) not in (1, 2):
        raise SettingsError(
            f"model lstm: inputs must be texts, not of shape {input_shape}; use another model"
        )
    if len(input_shape) == 1 and not vocabulary:
        raise SettingsError("model lstm: the task has no vocabulary; set vocabulary=, or use another model")
    vectors = nn.Embedding(vocabulary, embedding) if len(input_shape) == 1 else nn.Identity()
    size = embedding if len(input_shape) == 1 else input_shape[1]
    return Recurrent(vectors, nn.LSTM(size, hidden, layers, batch_first=True, dropout=dropout), num_outputs)


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
    "hf-lm": hf_lm,
}
"""Models by name: ``(input_shape, num_outputs, *, options)``.

Each maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs), such as logits of classes.
The inputs of those with convolutions are images: channels, height and width, at least 4x4 pixels. ValueError
is raised for inputs of other shapes, and for options that are not allowed.
"""

RATES = {"logistic": 0.2, "mlp": 0.2, "lstm": 0.2} | dict.fromkeys(
    ("lenet", "cnn", "cnn3x3", "vgg11", "resnet18", "resnet50"), 0.1
)
"""Learning rates that suit models: see the table in docs/tasks.md."""
RATE = 0.05
"""The rate of all others, among them models of the user's own."""
