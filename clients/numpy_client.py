"""A client without PyTorch, for small devices: softmax regression by mini-batch SGD in NumPy.

It works with `model=logistic` and every method whose clients do plain SGD: FedAvg, FedSGD, the schemes, MIFA,
FedLaAvg and MimiC, for example.

The node config gives the node's part of the data, `partition-id` of `num-partitions`. With `data`, a path in
the node config or the run config, the client reads `x` and `y` from that .npz file instead of scikit-learn's
digits. With `max-steps` it is a slow device that does at most so many local steps per round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client, ClientApp, NumPyClient
from numpy.typing import NDArray

from clients.deadline import LocalDeadline
from flexfl.contract import SGD, FitConfig, Scalar, metrics

Array = NDArray[np.floating[Any]]


def load(path: str) -> tuple[Array, NDArray[np.int64]]:
    """Return inputs, shape (n, d), and labels, shape (n,), of an .npz file; of the digits without a path."""
    if path:
        with np.load(path) as file:
            x, y = file["x"], file["y"]
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x = x / 16
    return x.reshape(len(y), -1).astype(np.float32), y.astype(np.int64)


def probabilities(weight: Array, bias: Array, x: Array) -> Array:
    """Return the softmax of the logits, shape (n, classes)."""
    logits = x @ weight.T + bias
    odds: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    return odds


def loss_of(p: Array, y: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy."""
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


class SoftmaxRegression(NumPyClient):
    """A client that trains a weight (classes, d) and a bias (classes,).

    Parameters
    ----------
    client
        Which client this is.
    x, y
        Its examples.
    max_steps
        Local steps that it does per round, at most; 0: as many as it is asked for.
    """

    def __init__(self, client: int, x: Array, y: NDArray[np.int64], max_steps: int = 0) -> None:
        self.client, self.x, self.y, self.max_steps = client, x, y, max_steps

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Return which client this is; the server asks each node once."""
        return {metrics.CLIENT_ID: self.client}

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Scalar]]:
        """Do local SGD until the deadline; `steps` are reported only if they are fewer than asked for.

        Raises
        ------
        ValueError
            The method needs more than plain SGD, the task is impossible, the model is another one, or the
            client has no examples.
        """
        start = time.monotonic()
        task = FitConfig.from_wire(config)
        if task.rule != SGD.name:
            raise ValueError(f"this client does plain SGD only, not {task.rule!r}")
        weight, bias = self._weights(parameters)
        rate, batch_size = task.learning_rate, task.batch_size or len(self.y)
        planned = task.planned_steps(len(self.y))
        steps = min(planned, self.max_steps or planned)
        rng = np.random.default_rng([self.client, task.round])
        losses: list[float] = []
        deadline = LocalDeadline(None if task.deadline_seconds is None else start + task.deadline_seconds)
        for _, rows in zip(range(steps), self._batches(batch_size, rng), strict=False):
            x, y = self.x[rows], self.y[rows]
            error = probabilities(weight, bias, x)
            losses.append(loss_of(error, y))
            error[np.arange(len(y)), y] -= 1
            weight -= rate / len(y) * error.T @ x
            bias -= rate / len(y) * error.sum(axis=0)
            if not deadline.allows_another(len(losses)):
                break
        reported: dict[str, Scalar] = {metrics.TRAIN_LOSS: float(np.mean(losses))}
        if len(losses) < planned:
            reported[metrics.STEPS] = len(losses)
        if task.deadline_seconds is not None:
            reported[metrics.SECONDS] = time.monotonic() - start
        return [weight, bias], len(self.y), reported

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Evaluate the weights on this client's examples."""
        p = probabilities(*self._weights(parameters), self.x)
        return loss_of(p, self.y), len(self.y), {metrics.ACCURACY: float((p.argmax(axis=1) == self.y).mean())}

    def _weights(self, parameters: list[NDArray[Any]]) -> tuple[Array, Array]:
        """Return copies of the weight and the bias.

        Raises
        ------
        ValueError
            The model is another one, or there are no examples for it.
        """
        if len(parameters) != 2 or parameters[0].shape[1:] != self.x.shape[1:]:
            shapes, inputs = [array.shape for array in parameters], self.x.shape[1]
            raise ValueError(f"this client trains model=logistic on {inputs} inputs, not weights of {shapes}")
        if not len(self.y):
            raise ValueError("the client has no examples")
        return parameters[0].copy(), parameters[1].copy()

    def _batches(self, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """Yield the indices of one batch after the other; every epoch shuffles the data anew."""
        while True:
            order = rng.permutation(len(self.y))
            yield from (order[start : start + size] for start in range(0, len(order), size))


def client_fn(context: Context) -> Client:
    """Make the client of a node; see the beginning of this file for its node config."""
    node = context.node_config
    if "partition-id" not in node or "num-partitions" not in node:
        raise ValueError(
            "node-config needs partition-id and num-partitions, such as 'partition-id=0 num-partitions=3'"
        )
    part, count = int(node["partition-id"]), int(node["num-partitions"])
    x, y = load(str(node.get("data", context.run_config.get("data", ""))))
    return SoftmaxRegression(part, x[part::count], y[part::count], int(node.get("max-steps", 0))).to_client()


app = ClientApp(client_fn=client_fn)
