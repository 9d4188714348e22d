"""Linear layers, the first of which is in its dual form while a client trains.

SGD subtracts products of errors and inputs from the weights: after any number of steps they are W - E'X. The
rows of X are the client's examples, those of E the scaled errors of each example, summed over the steps. The
first layer's inputs X are data and do not change, so that its outputs are XW' - (XX')E, and XW' and XX' are
computed once. The first layer holds most of such a model's weights; they are read before the first step
and written after the last, and products of many examples make better use of a processor.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from clients.draws import BatchIndices
from clients.gradients.batches import CohortBatches
from clients.gradients.stacked import StackedLinear, linear, subtract_gradient
from clients.rules.base import Correction

MAX_WORK = 1.5  # times the operations of single steps: larger products are that much faster


class DualLinear(StackedLinear):
    """Linear layers and ReLUs, all clients in the same calls; the first layer once for all steps of SGD.

    Rules other than plain SGD, and clients whose examples have more products than that saves, train in the
    single steps of `StackedLinear`.
    """

    def cohort_key(self, indices: BatchIndices) -> Hashable:
        """See `CohortOracle.cohort_key`: also the padded number of distinct examples, if steps are fused."""
        return indices.padded_length, indices.padded_distinct if self.fuses_steps(indices) else None

    def buffer_size(self, indices: BatchIndices, input_size: int) -> int:
        """See `CohortOracle.buffer_size`: all examples, their products, and E, if steps are fused."""
        distinct = indices.padded_distinct
        if not self.fuses_steps(indices):
            return super().buffer_size(indices, input_size)
        return distinct * (input_size + distinct + 2 * self.layers[0].out_features)

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        """See `CohortOracle.fuses_steps`: where that does not take many more operations.

        Operations are counted, not timed, so that the same work gives the same bits on every machine.
        """
        if corrected or indices.changes is not None:  # which changes the examples in every step
            return False
        first, distinct, total = self.layers[0], indices.padded_distinct, len(indices.indices)
        single = 2 * total * first.in_features * first.out_features
        once = distinct * first.in_features * (distinct + 2 * first.out_features)
        return once + total * distinct * first.out_features <= MAX_WORK * single

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> Tensor:
        """See `CohortOracle.run_fused`."""
        x, positions = batches.distinct_inputs()
        x, active = x.flatten(2), y
        # Of `start` and not of y: if all rows are one, it stays in the cache.
        at_start = linear(self.layers[0].views(start), x)
        products = torch.bmm(x, x.transpose(1, 2)).add_(self.layers[0].has_bias)  # a bias has inputs of one
        errors = torch.zeros_like(at_start)
        losses = y.new_zeros(positions.shape[:2])
        rows = positions + (torch.arange(len(y), device=y.device) * x.shape[1])[:, None]
        for t, count in enumerate(batches.counts):
            if count < len(active):
                active = y[:count]
            views, of_step = self.views(active), rows[t, :count].reshape(-1)
            first = _rows(at_start, of_step, count).baddbmm_(
                _rows(products, of_step, count), errors[:count], alpha=-1
            )
            inputs, (error, *others), losses[t, :count] = self.backpropagate(
                views, first, batches.targets[t, :count], batches.weights[t, :count]
            )
            scale = rate[:count, :, None]
            for upper, h, other in zip(views[1:], inputs, others, strict=True):
                subtract_gradient(upper, other.mul_(scale), h)
            errors.view(-1, errors.shape[2]).index_add_(0, of_step, error.mul_(scale).flatten(0, 1))
        subtract_gradient(self.views(y)[0], errors, x)
        return losses


def _rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Select rows of (A, U, n) values, numbered over all A clients, as (count, B, n)."""
    return values.view(-1, values.shape[2]).index_select(0, rows).view(count, -1, values.shape[2])
