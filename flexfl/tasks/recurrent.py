"""Recurrent models of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from flexfl.tasks.layers import share

if TYPE_CHECKING:
    from torch import nn


def lstm(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    embedding: Annotated[int, "at least 1"] = 8,
    hidden: Annotated[int, "at least 1"] = 256,
    layers: Annotated[int, "at least 1"] = 2,
    dropout: Annotated[float, "from 0, below 1"] = 0.0,
    vocabulary: Annotated[int, "at least 0"] = 0,
) -> nn.Module:
    """Long short-term memory over a text, and a linear layer on its last output.

    As it is, it is McMahan et al.'s and LEAF's model of the next character (819,920 parameters with 80
    characters). Words that come as vectors, such as those of GloVe, need no embedding.

    Parameters
    ----------
    input_shape : tuple of int
        (L,) for the numbers of L characters or words, or (L, D) for vectors of L words.
    num_outputs : int
        Numbers that it returns for an example, such as the logits of the classes.
    embedding : int
        Length of the vectors that it learns for characters or words.
    hidden : int
        Units of each layer.
    layers : int
        How many layers there are.
    dropout : float
        Share of each layer's outputs that is dropped in training, but not of the last one's.
    vocabulary : int
        How many different characters or words there are; 0: as many as the task says.

    Returns
    -------
    torch.nn.Module
        Maps inputs of shape (n, *input_shape) to outputs of shape (n, num_outputs).

    Raises
    ------
    ValueError
        If the inputs are no texts, or an option is impossible.

    References
    ----------
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    section 3; Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """
    from torch import nn

    from flexfl.tasks.modules import Recurrent

    share("model lstm: dropout", dropout)
    if min(embedding, hidden, layers) < 1 or vocabulary < 0:
        raise ValueError(
            "model lstm: embedding, hidden and layers must be at least 1 and vocabulary at least 0, not "
            f"{embedding}, {hidden}, {layers} and {vocabulary}"
        )
    if len(input_shape) not in (1, 2):
        raise ValueError(f"model lstm: inputs must be texts, not of shape {input_shape}; use another model")
    if len(input_shape) == 1 and not vocabulary:
        raise ValueError("model lstm: the task has no vocabulary; set vocabulary=, or use another model")
    vectors = nn.Embedding(vocabulary, embedding) if len(input_shape) == 1 else nn.Identity()
    size = embedding if len(input_shape) == 1 else input_shape[1]
    return Recurrent(vectors, nn.LSTM(size, hidden, layers, batch_first=True, dropout=dropout), num_outputs)
