"""Whether an oracle computes the gradients of autograd: tried on real examples before a run uses it.

What a model is made of (`structure`) does not say all: a class may have been changed while the program runs,
a library may have a defect. A wrong gradient trains as fast as a right one, and nothing else would notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel, as_tensor, own_draws
from clients.rules.base import Correction
from fedtide.ground.errors import SettingsError
from fedtide.tasks import Examples

if TYPE_CHECKING:
    from clients.gradients.oracle import CohortOracle

TOLERANCE = 1e-4  # of the norm of autograd's gradient
ON_GPUS = 2e-2  # where convolutions may be computed with ten bits
STEP = 0.1  # of the weights' norm: rounding them is far below the tolerance
FLAT = 0.1  # a gradient of a smaller norm may be mostly rounding, as where a model fits its examples


class DiffersError(SettingsError):
    """An oracle computes other gradients than autograd."""


def prove(oracle: CohortOracle, examples: Examples, fused: bool = True) -> None:
    """Raise `DiffersError` if an oracle's gradients at these examples are not those of autograd.

    Whatever the oracle itself raises shows that it does not support the model. Rounding may switch a ReLU
    whose input is nearly zero, once in some hundred models, which changes a gradient by as much as a mistake:
    so a mistake is what shows with all examples, and again with both halves of them.
    """
    inputs, targets = (as_tensor(array).to(oracle.model.device) for array in examples)
    eps = torch.finfo(oracle.model.vector.dtype).eps
    tolerance = max(TOLERANCE if inputs.device.type == "cpu" else ON_GPUS, 50 * eps)
    off = 0.0
    for part in (slice(None), slice(0, None, 2), slice(1, None, 2)):
        if not len(inputs[part]):
            continue
        off = _difference(oracle, inputs[part], targets[part], fused)
        if off <= tolerance:
            return
    raise DiffersError(f"its gradients are not those of autograd: they differ by {off:.2g} of the norm")


def _difference(oracle: CohortOracle, inputs: Tensor, targets: Tensor, fused: bool) -> float:
    """Return how far an oracle's steps are from those of autograd, as a share of their length.

    Two clients, one of which has an example fewer, so that its batches are padded, do two steps of SGD. What
    is compared is the gradient at the initial weights and at those after a step, the second step, and, with
    `fused`, the weights after both where the oracle does all steps in one call. Where autograd's are not
    finite, nothing is compared, and nothing differs.
    """
    model = oracle.model
    clients = [_all_twice(len(inputs)), _all_twice(max(1, len(inputs) - 1))]
    batches = CohortBatches(inputs, targets, clients, model.vector.dtype)
    one, other = batches.step(0), batches.step(1)
    start = model.vector.expand(2, -1).clone()
    at_start = oracle.gradient(start, one)[0].clone()  # or raises, before the model draws anything
    with own_draws(model.device):
        first = _by_autograd(model, start, one)
        size = STEP * start.norm().clamp(min=1)
        rate = (size / first.norm().clamp(min=FLAT)).repeat(2, 1)
        after = start - rate * first
        last = after - rate * _by_autograd(model, after, other)
    model.bind(model.vector)
    if not last.isfinite().all():
        return 0.0
    found = [(start - rate * at_start, after), (after - rate * oracle.gradient(after, other)[0], last)]
    found.append((after.clone(), last))
    oracle.descend(found[-1][0], rate, other, None)
    if fused and oracle.fuses_steps(clients[0]):
        found.append((torch.empty_like(start), last))
        oracle.run_fused(found[-1][0], start, rate, batches, Correction())
    size = torch.maximum(size, (last - after).norm())
    return float(torch.stack([(weights - expected).norm() / size for weights, expected in found]).max())


def _all_twice(count: int) -> BatchIndices:
    """Two steps, each with all of so many examples."""
    return BatchIndices(np.tile(np.arange(count), 2), np.full(2, count), count)


def _by_autograd(model: FlatModel, y: Tensor, batch: Batch) -> Tensor:
    """Return the gradients at weights `y` of clients, one after the other."""
    parts = zip(y, batch.inputs, batch.targets, batch.lengths, strict=True)
    return torch.stack([model.gradient(w, (x[:n], t[:n]))[0].clone() for w, x, t, n in parts])
