"""Loss and accuracy of a model on a set of examples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clients.gradients.flat import FlatModel, as_tensor
from flexfl.tasks import Examples, FederatedData

BATCH = 1000


def evaluate(model: FlatModel, examples: Examples) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy of the model with its current weights.

    Raises
    ------
    ValueError
        There are no examples.
    """
    n = len(examples[1])
    if not n:
        raise ValueError("there are no examples to evaluate on")
    loss = hits = 0.0
    for outputs, targets in _outputs(model, examples):
        loss += float(functional.cross_entropy(outputs, targets, reduction="sum"))
        hits += float((outputs.argmax(1) == targets).sum())
    return loss / n, hits / n


def correct(model: FlatModel, examples: Examples) -> NDArray[np.bool_]:
    """Return which examples the model with its current weights predicts correctly, shape (n,)."""
    found = [(outputs.argmax(1) == targets).cpu().numpy() for outputs, targets in _outputs(model, examples)]
    return np.concatenate([np.empty(0, np.bool_), *found])


def _outputs(model: FlatModel, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the model's outputs and the labels, some examples at a time."""
    x, labels = examples
    model.module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(labels), BATCH):
                targets = as_tensor(labels[start : start + BATCH]).to(model.device)
                yield model.module(as_tensor(x[start : start + BATCH]).to(model.device)), targets
    finally:
        model.module.train()


def own_test(data: FederatedData, client: int) -> Examples:
    """Return the examples on which a client's model is evaluated: similar to its own, and never trained on.

    They are its hold-out. Without hold-outs, they are the examples of the common test set whose labels occur
    among its training examples: the labels that the client has, in the proportions of the test set.
    """
    alone = np.array([client])
    try:
        return data.holdout(alone)
    except ValueError:
        x, labels = data.test
        occurs = np.isin(labels, data.train_set(alone)[1])
        return x[occurs], labels[occurs]
