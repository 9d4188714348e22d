"""Networks of linear layers in NumPy, whose weights are one vector: `model=logistic` and `model=mlp`.

They are those of fedtide/tasks/models.py: linear layers with ReLU between them, and the mean cross-entropy of
classes as loss. Gradients agree with PyTorch's up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MODELS = ("logistic", "mlp")


class LinearLayers:
    """Linear layers with ReLU between them, each of tensors of shapes (outputs, inputs) and (outputs,).

    `model` is the one that the run names, empty if that is not known. A ValueError says that it, or the
    shapes, are those of another model.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], model: str = "") -> None:
        weights, biases = shapes[::2], shapes[1::2]
        widths = [weights[0][-1] if weights and weights[0] else 0, *(shape[0] for shape in biases if shape)]
        expected = [s for i, o in pairwise(widths) for s in ((o, i), (o,))]
        of_classes = widths[-1] > 1 and widths[1:-1] in ([], widths[1:2] * 2)
        if list(shapes) != expected or not of_classes or model.partition(":")[0] not in ("", *MODELS):
            listed = ", ".join(map(str, shapes[:8])) + (", ..." if len(shapes) > 8 else "")
            raise ValueError(
                "a client without PyTorch trains model=logistic and model=mlp on classes, not "
                f"{model or 'a model'} with tensors of {listed}; set one of these models, or install torch "
                "on the device"
            )
        self.shapes = list(shapes)
        self._ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        self.num_inputs, self.num_outputs = widths[0], widths[-1]

    def layers(self, vector: Array) -> list[tuple[Array, Array]]:
        """Return the weight and the bias of each layer as views of a vector of shape (M,)."""
        parts = np.split(vector, self._ends)
        tensors = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def logits(self, vector: Array, x: Array) -> Array:
        """Return the outputs for inputs of shape (n, d), shape (n, classes)."""
        return self._forward(self.layers(vector), x)[-1]

    def gradient(self, vector: Array, x: Array, y: NDArray[np.int64]) -> tuple[Array, float]:
        """Return the gradient of the mean loss, shape (M,), and the mean loss."""
        layers = self.layers(vector)
        activations = self._forward(layers, x)
        error, losses = _softmax_error(activations[-1], y)
        error /= len(y)
        gradient = np.empty_like(vector)
        parts = self.layers(gradient)
        for k, at_outputs in self._backward(layers, activations, error):
            np.matmul(at_outputs.T, activations[k], out=parts[k][0])
            at_outputs.sum(axis=0, out=parts[k][1])
        return gradient, float(losses.mean())

    def fisher(self, vector: Array, x: Array, y: NDArray[np.int64]) -> Array:
        """Return the diagonal of the empirical Fisher information: the mean squared per-example gradient.

        The gradient of one example is an outer product in each weight, so its square is one of squares.
        """
        layers = self.layers(vector)
        activations = self._forward(layers, x)
        error, _ = _softmax_error(activations[-1], y)
        diagonal = np.empty_like(vector)
        parts = self.layers(diagonal)
        for k, at_outputs in self._backward(layers, activations, error):
            squares = np.square(at_outputs) / len(y)
            np.matmul(squares.T, np.square(activations[k]), out=parts[k][0])
            squares.sum(axis=0, out=parts[k][1])
        return diagonal

    def _forward(self, layers: list[tuple[Array, Array]], x: Array) -> list[Array]:
        """Return the inputs of each layer, and the outputs of the last."""
        activations = [x]
        for k, (weight, bias) in enumerate(layers):
            outputs = activations[-1] @ weight.T + bias
            activations.append(np.maximum(outputs, 0, out=outputs) if k + 1 < len(layers) else outputs)
        return activations

    def _backward(
        self, layers: list[tuple[Array, Array]], activations: list[Array], error: Array
    ) -> list[tuple[int, Array]]:
        """Return the derivative of the loss in the outputs of each layer, with its number."""
        errors = [(len(layers) - 1, error)]
        for k in range(len(layers) - 1, 0, -1):
            error = (error @ layers[k][0]) * (activations[k] > 0)
            errors.append((k - 1, error))
        return errors


def _softmax_error(logits: Array, y: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the derivative of each example's cross-entropy in its logits, and the cross-entropies."""
    rows = np.arange(len(y))
    shifted = logits - logits.max(axis=1, keepdims=True)
    error = np.exp(shifted)
    sums = error.sum(axis=1, keepdims=True)
    losses = np.log(sums[:, 0]) - shifted[rows, y]
    error /= sums
    error[rows, y] -= 1
    return error, losses


def evaluate(logits: Array, y: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean loss and the share of correct predictions."""
    _, losses = _softmax_error(logits, y)
    return float(losses.mean()), float((logits.argmax(axis=1) == y).mean())
