"""Stacks of linear layers whose first one is in its dual form while a client trains.

SGD takes products of errors and inputs off the weights: after any number of steps they are W - E'X, where X
has the client's examples, one a row, and E the scaled errors that each of them has made so far, summed. The
first layer's inputs X are data and stay the same, so that its outputs are XW' - (XX')E, with products that
are taken once. It has most of such a model's weights, which are used before the first step and after the last
only, and products of many examples use a processor better than those of a batch do.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from clients.gradients.batches import CohortBatches, Steps
from clients.gradients.stacked import StackedLinear, outputs, subtract_product

WORTH = 1.5  # times the operations of single steps: larger products make up for that


class DualLinear(StackedLinear):
    """All steps of plain SGD at once; single steps, which other rules ask for, as `StackedLinear` does them.

    A client whose examples have more products than that saves trains in single steps, too.
    """

    def touched(self, chosen: Steps) -> int:
        """See `CohortOracle.touched`: those of all layers but the first."""
        if not self.at_once(chosen):
            return super().touched(chosen)
        return self._size - self.layers[1].start if len(self.layers) > 1 else 0

    def alike(self, chosen: Steps) -> Hashable:
        """See `CohortOracle.alike`: as many different examples."""
        return chosen.padded, chosen.distinct if self.at_once(chosen) else None

    def room(self, chosen: Steps, input_size: int) -> int:
        """See `CohortOracle.room`: all examples, their products, and E."""
        distinct = chosen.distinct
        if not self.at_once(chosen):
            return super().room(chosen, input_size)
        return distinct * (input_size + distinct + 2 * self.layers[0].outputs)

    def at_once(self, chosen: Steps) -> bool:
        """See `CohortOracle.at_once`: where it takes not many more operations."""
        first, distinct, total = self.layers[0], chosen.distinct, len(chosen.rows)
        steps = 2 * total * first.inputs * first.outputs
        here = distinct * first.inputs * (distinct + 2 * first.outputs) + total * distinct * first.outputs
        return here <= WORTH * steps

    def run(self, y: Tensor, rate: Tensor, batches: CohortBatches) -> Tensor:
        """See `CohortOracle.run`."""
        x, places = batches.distinct()
        x, active = x.flatten(2), y
        start = outputs(self.layers[0].views(y[:1].expand_as(y)), x)  # one row is in the cache, all are not
        products = torch.bmm(x, x.transpose(1, 2)).add_(self.layers[0].bias)  # the bias is a weight of ones
        errors = torch.zeros_like(start)
        losses = y.new_zeros(places.shape[:2])
        rows = places + (torch.arange(len(y), device=y.device) * x.shape[1])[:, None]
        for t, count in enumerate(batches.counts):
            if count < len(active):
                active = y[:count]
            views, at = self.views(active), rows[t, :count].reshape(-1)
            first = _rows(start, at, count).baddbmm_(_rows(products, at, count), errors[:count], alpha=-1)
            inputs, (error, *others), losses[t, :count] = self.passes(
                views, first, batches.labels[t, :count], batches.weights[t, :count]
            )
            scale = rate[:count, :, None]
            for upper, h, other in zip(views[1:], inputs, others, strict=True):
                subtract_product(upper, other.mul_(scale), h)
            errors.view(-1, errors.shape[2]).index_add_(0, at, error.mul_(scale).flatten(0, 1))
        subtract_product(self.views(y)[0], errors, x)
        return losses


def _rows(values: Tensor, at: Tensor, count: int) -> Tensor:
    """Return rows of (A, U, n) values, numbered over all A clients, as (count, B, n)."""
    return values.view(-1, values.shape[2]).index_select(0, at).view(count, -1, values.shape[2])
