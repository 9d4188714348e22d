"""A client without PyTorch, for small devices: local training in NumPy, with every method.

It trains `model=logistic` and `model=mlp` on classes or numbers, by the rules and with the memory of our
other clients: where both have the same examples, both send the same weights, up to the rounding of sums.

Its node config is that of clients/device/node.py. Without `data`, its examples are one of `num-partitions`
parts of scikit-learn's digits (by default as many as clients). With `max-steps` it is a slow device that does
at most so many local steps per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import ClientApp
from numpy.typing import NDArray

from clients.client import FlexibleClient
from clients.device import local_data
from clients.device.local_data import DataSpec, LocalData
from clients.device.node import Node, make_node
from clients.draws import client_rng, draw_batches, draw_fisher
from clients.rules.base import Oracle
from clients.rules.vectors import Vector, as_array
from clients.single import Asked, Trained, personal, train
from fedtide.base.contract import Scalar, metrics
from fedtide.base.one_object import one_object

Array = NDArray[Any]
Errors = Callable[[Array, Array], tuple[Array, Array]]
MODELS = ("logistic", "mlp")


class NumPyClient(FlexibleClient):
    """A client that trains linear layers on its own examples.

    `examples` returns those to train on and those to evaluate on, given what the run's task does to its data.
    The client does at most `max_steps` local steps per round; 0: as many as it is asked for. `model` is what
    the run names, empty for the task's own. A ValueError says that the task is impossible, the model is not
    one of these, or there are no examples.
    """

    def __init__(
        self,
        node: Node,
        examples: Callable[[str], tuple[LocalData, LocalData]],
        seed: int = 0,
        max_steps: int = 0,
        model: str = "",
    ) -> None:
        super().__init__(node)
        self.examples, self.seed, self.max_steps, self.model = examples, seed, max_steps, model

    def train(self, asked: Asked) -> Trained:
        config, (data, _) = asked.config, self.examples(asked.config.preprocessing)
        model, n = self._model(asked, data), len(data.y)
        planned = config.planned_steps(n)
        steps = min(planned, self.max_steps or planned)
        losses: list[float] = []

        def fisher(at: Vector) -> Vector:
            rows = draw_fisher(n, config, self.node.client, self.seed)
            return model.fisher(as_array(at), _rows(data.x[rows]), data.y[rows])

        gradients = self._gradients(asked, model, data, steps, losses)
        done = train(asked, gradients, n, np.asarray, steps, fisher, self.node.stopping)
        if losses:
            done.reported[metrics.TRAIN_LOSS] = float(np.mean(losses))
            done.reported[metrics.FINAL_LOSS] = losses[-1]
            done.reported[metrics.RMS_LOSS] = float(np.sqrt(np.mean(np.square(losses))))
        return done

    def score(self, asked: Asked) -> tuple[float, int, dict[str, Scalar]]:
        data, held_out = self.examples(asked.config.preprocessing)
        model = self._model(asked, data)
        weights = np.concatenate([array.ravel() for array in personal(asked, np.asarray)])
        outputs = model.outputs(weights, _rows(held_out.x))
        if held_out.unit is None:
            scores = {metrics.ACCURACY: float((outputs.argmax(axis=1) == held_out.y).mean())}
        else:
            error = np.abs(outputs[:, 0] - held_out.y).mean() * held_out.unit
            scores = {metrics.MEAN_ABSOLUTE_ERROR: float(error)}
        _, losses = model.errors(outputs, held_out.y)
        return float(losses.mean()), len(held_out.y), {**scores}

    def _model(self, asked: Asked, data: LocalData) -> LinearLayers:
        """Return the model that the server's weights are of, if it can be trained on the examples."""
        if asked.config.frozen_checksum:
            raise ValueError("a client without PyTorch has no frozen weights; install torch on the device")
        if not len(data.y):
            raise ValueError("the client has no examples")
        errors = _softmax_errors if data.unit is None else _differences
        model = LinearLayers([array.shape for array in asked.weights], errors, self.model)
        data.check(model.num_inputs, model.num_outputs)
        return model

    def _gradients(
        self, asked: Asked, model: LinearLayers, data: LocalData, steps: int, losses: list[float]
    ) -> Iterator[Oracle]:
        """Yield the gradient of each step, which adds the loss where the step first takes it to `losses`."""
        rng = client_rng(self.seed, b"batches", self.node.client, asked.config.round)
        for rows in draw_batches(len(data.y), asked.config.batch_size, steps, rng).split():
            yield _noting_loss(partial(model.gradient, x=_rows(data.x[rows]), y=data.y[rows]), losses)


def _noting_loss(gradient: Callable[[Array], tuple[Array, float]], losses: list[float]) -> Oracle:
    before = len(losses)

    def oracle(at: Vector) -> Vector:
        value, loss = gradient(as_array(at))
        if len(losses) == before:  # the first gradient of its step
            losses.append(loss)
        return value

    return oracle


def _rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs as vectors, shape (n, d)."""
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


class LinearLayers:
    """Linear layers with ReLU between them, each of tensors of shapes (outputs, inputs) and (outputs,).

    `errors` returns the derivative of each example's loss in the outputs, shape (n, outputs), and the losses,
    shape (n,), given outputs and targets. `model` is the one that the run names, empty if that is not known.
    A ValueError says that it, or the shapes, are those of another model.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], errors: Errors, model: str = "") -> None:
        weights, biases = shapes[::2], shapes[1::2]
        widths = [weights[0][-1] if weights and weights[0] else 0, *(shape[0] for shape in biases if shape)]
        expected = [s for i, o in pairwise(widths) for s in ((o, i), (o,))]
        one_width = widths[1:-1] in ([], widths[1:2] * 2)
        if list(shapes) != expected or not one_width or model.partition(":")[0] not in ("", *MODELS):
            listed = ", ".join(map(str, shapes[:8])) + (", ..." if len(shapes) > 8 else "")
            raise ValueError(
                "a client without PyTorch trains model=logistic and model=mlp, not "
                f"{model or 'a model'} with tensors of {listed}; set one of these models, or install torch "
                "on the device"
            )
        self.shapes, self.errors = list(shapes), errors
        self._ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        self.num_inputs, self.num_outputs = widths[0], widths[-1]

    def layers(self, vector: Array) -> list[tuple[Array, Array]]:
        """Return the weight and the bias of each layer as views of a vector of shape (M,)."""
        parts = np.split(vector, self._ends)
        tensors = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def outputs(self, vector: Array, x: Array) -> Array:
        """Return the outputs for inputs of shape (n, d), shape (n, outputs)."""
        return self._forward(self.layers(vector), x)[-1]

    def gradient(self, vector: Array, x: Array, y: Array) -> tuple[Array, float]:
        """Return the gradient of the mean loss, shape (M,), and the mean loss."""
        layers = self.layers(vector)
        activations = self._forward(layers, x)
        error, losses = self.errors(activations[-1], y)
        error /= len(y)
        gradient = np.empty_like(vector)
        parts = self.layers(gradient)
        for k, at_outputs in self._backward(layers, activations, error):
            np.matmul(at_outputs.T, activations[k], out=parts[k][0])
            at_outputs.sum(axis=0, out=parts[k][1])
        return gradient, float(losses.mean())

    def fisher(self, vector: Array, x: Array, y: Array) -> Array:
        """Return the diagonal of the empirical Fisher information: the mean squared per-example gradient.

        The gradient of one example is an outer product in each weight, so its square is one of squares.
        """
        layers = self.layers(vector)
        activations = self._forward(layers, x)
        error, _ = self.errors(activations[-1], y)
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


def _softmax_errors(logits: Array, y: Array) -> tuple[Array, Array]:
    """Return the derivative of each example's cross-entropy in its logits, and the cross-entropies."""
    rows = np.arange(len(y))
    shifted = logits - logits.max(axis=1, keepdims=True)
    error = np.exp(shifted)
    sums = error.sum(axis=1, keepdims=True)
    losses = np.log(sums[:, 0]) - shifted[rows, y]
    error /= sums
    error[rows, y] -= 1
    return error, losses


def _differences(outputs: Array, y: Array) -> tuple[Array, Array]:
    """Return the derivative of half of each example's squared error in its output, and these halves."""
    differences = outputs - y[:, None]
    return differences, np.square(differences[:, 0]) / 2


@lru_cache(maxsize=1)
def load(spec: DataSpec | None, preprocessing: str) -> LocalData:
    """Return a device's own examples, or scikit-learn's digits without one; once per process."""
    if spec is not None:
        return local_data.read(spec, preprocessing)
    from fedtide.tasks.images import load_digits  # a device with data of its own needs no tasks

    x, y = load_digits()
    return LocalData((x / 16).astype(np.float32), y.astype(np.int64), 10, "the digits")


def client_fn(context: Context) -> NumPyClient:
    """Make the client of a node; see the beginning of this file for its node config."""
    run, config = context.run_config, context.node_config
    num_clients = run.get("num-clients")
    node = make_node(context, None if num_clients is None else int(num_clients))
    count = int(config.get("num-partitions", num_clients or 0))
    if node.data is None and not count:
        raise ValueError(
            "node-config needs data, a file or folder, or num-partitions, such as num-partitions=3"
        )
    part, seed = int(config.get("partition-id", node.client)), int(run.get("seed", 0))

    def examples(preprocessing: str) -> tuple[LocalData, LocalData]:
        if node.data is None and (task := run.get("task", "digits")) != "digits":
            raise ValueError(f"a client without PyTorch has no part of task {task}: give it data (--data)")
        data = load(node.data, preprocessing)
        if node.data is None or "num-partitions" in config:
            data = data._replace(x=data.x[part::count], y=data.y[part::count])
        if run.get("evaluate-on", "test") == "test" and not run.get("evaluate-clients"):
            return data, data
        share = float(run.get("holdout", 0.2))
        return data.hold_out(share, client_rng(seed, b"holdout", node.client, 0))

    max_steps, model = int(config.get("max-steps", 0)), str(run.get("model", ""))
    return NumPyClient(node, examples, seed, max_steps, model)


app = ClientApp(client_fn=client_fn, mods=[one_object])
