"""Linear layers, ReLUs and dropout, with the backward pass written out, for many clients.

`StackedLinear` trains all clients in the same calls, one step at a time. Such a model is limited by the
memory traffic of its weights: a step reads each client's weights for the forward pass, and updates them in
place by the product of two thin matrices, so the gradient is never stored. `Compiled` does all steps of a
client in code that Numba has compiled (`linear_sgd`), with the clients on all cores.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import CohortOracle
from clients.gradients.proof import plain_sequence
from clients.gradients.random_layers import DrawnLayer, is_dropout
from clients.rules.base import Change, Correction
from fedtide.base.errors import SettingsError
from fedtide.tasks.criteria import CrossEntropy

MAX_THREADS = 16  # more would wait for memory


class LinearViews(NamedTuple):
    """A layer's weights (A, o, i) and (A, i, o), and its biases (A, o) and (A, 1, o), if it has any."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    bias_row: Tensor | None


class LinearLayer(NamedTuple):
    """Where the parameters of a linear layer start in the flat vector, and what follows it."""

    start: int
    out_features: int
    in_features: int
    has_bias: bool
    relu: bool
    dropout: DrawnLayer | None

    def views(self, vectors: Tensor) -> LinearViews:
        """Return the layer's part of vectors of shape (A, M)."""
        stop = self.start + self.out_features * self.in_features
        weight = vectors[:, self.start : stop].view(-1, self.out_features, self.in_features)
        bias = vectors[:, stop : stop + self.out_features] if self.has_bias else None
        return LinearViews(weight, weight.transpose(1, 2), bias, None if bias is None else bias[:, None])


def linear_layers(module: nn.Module) -> list[LinearLayer] | None:
    """Return the layers of a sequence of linear layers, ReLUs and dropout; None: the model is anything else.

    Layers with a single input or output are not supported: BLAS may round products with vectors differently
    for one client than for several, and a client's result must not depend on the others in the cohort.
    """
    parts = plain_sequence(module)
    if parts is None:
        return None
    layers: list[LinearLayer] = []
    start = 0
    for position, part in enumerate(parts):
        if type(part) is nn.Flatten and not position and part.start_dim == 1 and part.end_dim == -1:
            continue
        if type(part) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif is_dropout(part) and layers and not layers[-1].dropout:
            layers[-1] = layers[-1]._replace(dropout=part)
        elif type(part) is nn.Linear and min(part.weight.shape) > 1:
            out_features, in_features = part.weight.shape
            layers.append(LinearLayer(start, out_features, in_features, part.bias is not None, False, None))
            start += sum(p.numel() for p in part.parameters())
        else:
            return None
    return layers if layers and not (layers[-1].relu or layers[-1].dropout) else None


class StackedLinear(CohortOracle):
    """Linear layers, ReLUs and dropout, all clients in the same calls, one step at a time."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        layers = linear_layers(model.module)
        if layers is None:
            raise SettingsError(
                "the model is not a sequence of linear layers with at least 2 inputs and "
                "outputs, ReLUs and dropout; use cohort loop"
            )
        self.layers = layers
        self._last: tuple[Tensor | None, list[LinearViews]] = (None, [])

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        views = self.views(y)
        self.model.random.begin(batch.seeds, self.model.device)
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        gradient = torch.empty_like(y)
        for layer, x, error in zip(self.layers, inputs, errors, strict=True):
            of_layer = layer.views(gradient)
            of_layer.weight.copy_(error.transpose(1, 2) @ x)
            if of_layer.bias is not None:
                torch.sum(error, 1, out=of_layer.bias)
        return gradient, losses

    def descend(self, y: Tensor, rate: Tensor, batch: Batch, change: Change | None) -> Tensor:
        views = self.views(y)
        self.model.random.begin(batch.seeds, self.model.device)
        inputs, errors, losses = self._backpropagate(views, batch.inputs, batch.targets, batch.weights)
        if change is not None:
            change(y)
        for layer_views, x, error in zip(views, inputs, errors, strict=True):
            subtract_gradient(layer_views, error.mul_(rate[..., None]), x)
        return losses

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `FlatModel.fisher`: an example's gradient is an outer product, its square one of squares."""
        inputs, targets = examples
        self.model.random.begin(None, self.model.device)
        ones = torch.ones((1, len(targets)), dtype=y.dtype, device=y.device)
        layer_inputs, errors, _ = self._backpropagate(self.views(y[None]), inputs[None], targets[None], ones)
        diagonal = torch.zeros_like(y)[None]
        for layer, x, error in zip(self.layers, layer_inputs, errors, strict=True):
            of_layer = layer.views(diagonal)
            of_layer.weight.copy_(error.square().transpose(1, 2) @ x.square())
            if of_layer.bias is not None:
                torch.sum(error.square(), 1, out=of_layer.bias)
        return diagonal[0] / len(targets)

    def views(self, y: Tensor) -> list[LinearViews]:
        """Return each layer's part of `y`; cached, as `y` is usually that of the last step."""
        if self._last[0] is not y:
            self._last = y, [layer.views(y) for layer in self.layers]
        return self._last[1]

    def _backpropagate(
        self, views: list[LinearViews], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return each layer's inputs (A, B, i), the derivatives in its outputs (A, B, o), and losses (A,)."""
        layer_inputs, x, factors = [], inputs.flatten(2), list[Tensor | None]()
        for layer, of_layer in zip(self.layers, views, strict=True):
            layer_inputs.append(x)
            x = linear(of_layer, x)
            if layer.relu:
                x = x.relu_()
            factors.append(layer.dropout.factors(x[0]) if layer.dropout else None)
            if (scale := factors[-1]) is not None:
                x = x.mul_(scale)
        error, losses = self.model.criterion.error(x, targets, weights)
        errors = [error]
        for position in range(len(self.layers) - 1, 0, -1):
            error = torch.bmm(error, views[position].weight)
            if self.layers[position - 1].relu:
                error.mul_(layer_inputs[position] > 0)
            if (scale := factors[position - 1]) is not None:
                error.mul_(scale)
            errors.append(error)
        return layer_inputs, errors[::-1], losses


def linear(views: LinearViews, x: Tensor) -> Tensor:
    """Return a layer's outputs, shape (A, B, o), for inputs of shape (A, B, i)."""
    if views.bias_row is None:
        return torch.bmm(x, views.transposed)
    return torch.baddbmm(views.bias_row, x, views.transposed)


def subtract_gradient(views: LinearViews, errors: Tensor, x: Tensor) -> None:
    """Subtract the gradient from a layer's parameters, given its errors (A, B, o) and inputs (A, B, i)."""
    views.weight.baddbmm_(errors.transpose(1, 2), x, alpha=-1)
    if views.bias is not None:
        views.bias.sub_(errors.sum(1))


class Compiled(StackedLinear):
    """Linear layers with ReLUs between them and cross-entropy: all steps of a client in compiled code.

    Clients train on all cores. Rules that do more in a step than correct its gradient train in the single
    steps of `StackedLinear`.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        *lower, last = self.layers
        fits = all(layer.relu and layer.has_bias == last.has_bias and not layer.dropout for layer in lower)
        fits &= type(model.criterion) is CrossEntropy
        if not fits or model.device.type != "cpu" or model.vector.dtype not in (torch.float32, torch.float64):
            raise SettingsError(
                "the model is not a sequence of linear layers with ReLUs between them, all "
                "with biases or none, and cross-entropy, in single or double precision on a CPU; use cohort "
                "stacked"
            )
        try:
            from clients.gradients import linear_sgd
        except ImportError as error:
            raise SettingsError(f"{error}; pip install numba, or use cohort stacked") from None
        self._kernels = linear_sgd
        self.widths = np.array([self.layers[0].in_features, *(layer.out_features for layer in self.layers)])
        self.threads = min(MAX_THREADS, torch.get_num_threads())
        self._others = ThreadPoolExecutor(max(1, self.threads - 1))  # none is started before it is needed

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        return indices.changes is None  # the examples stay the same in all steps

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
        losses, norms = y.new_zeros(batches.indices.shape[:2]), np.zeros(len(y))
        direction = correction.direction if correction.direction is not None else y.new_empty(0)
        work = self._kernels.Work(
            y.numpy(),
            _rows(start),
            correction.strength,
            _rows(cast(Tensor, direction)),
            rate.view(-1).numpy(),
            batches.inputs.flatten(1).contiguous().numpy(),
            batches.indices.numpy(),
            batches.targets.numpy(),
            batches.lengths,
            losses.numpy(),
            norms,
        )
        count = min(self.threads, len(y))
        run = self._kernels.train_layers if len(self.layers) > 1 else self._kernels.train

        def train(first: int) -> None:
            space = self._space(batches.indices.shape[2])
            run(work, *space, first, count)

        # Clients are sorted by their steps, so that every count-th make equal shares. This thread does one of
        # them: if it waited, two others would often share the core that it leaves.
        others = [self._others.submit(train, first) for first in range(1, count)]
        train(0)
        for other in others:
            other.result()
        return losses, norms

    def _space(self, padded_length: int) -> list[Any]:
        """Return room for the weights, activations and errors of a client, see `linear_sgd`."""
        batch, widths, line = _rounded_up(padded_length, 10), self.widths.tolist(), self._kernels.LINE

        def zeros(*shape: int) -> NDArray[Any]:
            return torch.zeros(shape, dtype=self.model.vector.dtype).numpy()

        if len(self.layers) == 1:
            size, classes = widths
            even = _rounded_up(classes, 2)
            return [zeros(even * _rounded_up(size, line)), zeros(classes), zeros(even, batch)]
        tens, pitches = (
            [_rounded_up(width, 10) for width in widths[1:]],
            [_rounded_up(width, line) for width in widths[:-1]],
        )
        return [
            self.widths,
            self.layers[0].has_bias,
            zeros(sum(m * n for m, n in zip(tens, pitches, strict=True))),
            zeros(sum(tens)),
            zeros(sum(tens), batch),
            zeros(len(tens), batch * max(pitches[1:])),
            zeros(batch, max(tens)),
        ]


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _rows(vectors: Tensor) -> NDArray[Any]:
    """Return vectors (K, M) as they are, and one vector for all clients, (M,) or expanded, as (1, M)."""
    if vectors.dim() == 1:
        return vectors[None].numpy()
    return (vectors[:1] if not vectors.stride(0) else vectors).contiguous().numpy()
