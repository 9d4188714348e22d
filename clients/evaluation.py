"""Loss and metric of a model on a set of examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.gradients.flat import FlatModel, as_tensor
from flexfl.tasks import Examples, FederatedData, are_classes, blank

BATCH = 1000


def evaluate(model: FlatModel, examples: Examples) -> tuple[float, float]:
    """Return mean loss and mean score of the model with its current weights; see `flexfl.tasks.Criterion`.

    Raises
    ------
    ValueError
        There are no examples.
    """
    n = len(examples[1])
    if not n:
        raise ValueError("there are no examples to evaluate on")
    loss = score = 0.0
    for outputs, targets in _outputs(model, examples):
        loss += float(model.criterion.total(outputs, targets))
        score += float(model.criterion.scores(outputs, targets).sum())
    return loss / n, score / n


def check_outputs(model: FlatModel, data: FederatedData) -> None:
    """Try the model on examples of zeros.

    Raises
    ------
    ValueError
        It cannot be used on these data, or returns something else than they need.
    """
    try:
        ((outputs, targets),) = _outputs(model, blank(data, 2))
        width = outputs.shape[-1] if outputs.dim() > 1 else 1
        if len(outputs) != 2 or width != data.num_outputs:
            raise ValueError(f"it returns shape {tuple(outputs.shape)} for 2 examples")
        model.criterion.scores(outputs, targets)
        model.criterion.total(outputs, targets)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        inputs = f"inputs of shape {data.input_shape} ({data.test[0].dtype})"
        raise ValueError(
            f"the model does not fit the task with {inputs} and {data.num_outputs} outputs: {reason}"
        ) from None


def mean_scores(model: FlatModel, parts: Sequence[Examples]) -> NDArray[np.float64]:
    """Return the mean score of the model with its current weights on each part, NaN on an empty one."""
    counts = np.array([len(targets) for _, targets in parts], np.int64)
    totals: NDArray[Any] = np.zeros(len(parts))
    if counts.any():
        x, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        found = [
            model.criterion.scores(*pair).double().cpu().numpy() for pair in _outputs(model, (x, targets))
        ]
        owner = np.repeat(np.arange(len(parts)), counts)
        totals = np.bincount(owner, np.concatenate(found), minlength=len(parts))
    means = np.full(len(parts), np.nan)
    np.divide(totals, counts, out=means, where=counts > 0)
    return means


def _outputs(model: FlatModel, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the model's outputs and the targets, some examples at a time."""
    x, y = examples
    model.module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(y), BATCH):
                targets = as_tensor(y[start : start + BATCH]).to(model.device)
                yield model.module(as_tensor(x[start : start + BATCH]).to(model.device)), targets
    finally:
        model.module.train()


def own_test(data: FederatedData, client: int) -> Examples:
    """Return the examples on which a client's model is evaluated: similar to its own, and never trained on.

    They are its hold-out. Without hold-outs, they are the common test set, of classes only those that occur
    among the client's training examples, in the proportions of the test set.
    """
    alone = np.array([client])
    try:
        return data.holdout(alone)
    except ValueError:
        x, targets = data.test
        if not are_classes(targets):
            return x, targets
        occurs = np.isin(targets, data.train_set(alone)[1])
        return x[occurs], targets[occurs]
