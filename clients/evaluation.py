"""Loss and accuracy of a model on a set of examples."""

from __future__ import annotations

import numpy as np
import torch
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
    x, labels = examples
    if not len(labels):
        raise ValueError("there are no examples to evaluate on")
    loss = correct = 0.0
    model.module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(labels), BATCH):
                targets = as_tensor(labels[start : start + BATCH]).to(model.device)
                outputs = model.module(as_tensor(x[start : start + BATCH]).to(model.device))
                loss += float(functional.cross_entropy(outputs, targets, reduction="sum"))
                correct += float((outputs.argmax(1) == targets).sum())
    finally:
        model.module.train()
    return loss / len(labels), correct / len(labels)


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
