"""A client without PyTorch, for small devices: local training in NumPy, with every method.

It trains `model=logistic` and `model=mlp` on classes, by the rules and with the memory of our other clients:
where both have the same examples, both send the same weights, up to the rounding of sums.

Its node config is that of clients/device/node.py. Without `data`, its examples are one of `num-partitions`
parts of scikit-learn's digits (by default as many as clients). With `max-steps` it is a slow device that does
at most so many local steps per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np
from flwr.app import Context
from flwr.client import ClientApp
from numpy.typing import NDArray

from clients.client import FlexibleClient
from clients.device import local_data
from clients.device.local_data import DataSpec, LocalData
from clients.device.node import Node, make_node
from clients.device.numpy_model import Array, LinearLayers, evaluate
from clients.draws import client_rng, draw_batches, draw_fisher
from clients.rules.base import Oracle
from clients.rules.vectors import Vector, as_array
from clients.single import Asked, Trained, personal, train
from fedtide.ground.contract import Scalar, metrics
from fedtide.ground.one_object import one_object


class NumPyClient(FlexibleClient):
    """A client that trains linear layers on its own examples; without `held_out` they also evaluate it.

    It does at most `max_steps` local steps per round; 0: as many as it is asked for. `model` is what the run
    names, empty for the task's own. A ValueError says that the task is impossible, the model is not one of
    these, or there are no examples.
    """

    def __init__(
        self,
        node: Node,
        data: LocalData,
        held_out: LocalData | None = None,
        seed: int = 0,
        max_steps: int = 0,
        model: str = "",
    ) -> None:
        super().__init__(node)
        self.data, self.held_out = data, held_out or data
        self.seed, self.max_steps, self.model = seed, max_steps, model

    def train(self, asked: Asked) -> Trained:
        config, model, n = asked.config, self._model(asked), len(self.data.y)
        planned = config.planned_steps(n)
        steps = min(planned, self.max_steps or planned)
        losses: list[float] = []

        def fisher(at: Vector) -> Vector:
            rows = draw_fisher(n, config, self.node.client, self.seed)
            return model.fisher(as_array(at), self._x(rows), self.data.y[rows])

        gradients = self._gradients(asked, model, steps, losses)
        done = train(asked, gradients, n, np.asarray, steps, fisher, self.node.stopping)
        if losses:
            done.reported[metrics.TRAIN_LOSS] = float(np.mean(losses))
            done.reported[metrics.FINAL_LOSS] = losses[-1]
            done.reported[metrics.RMS_LOSS] = float(np.sqrt(np.mean(np.square(losses))))
        return done

    def score(self, asked: Asked) -> tuple[float, int, dict[str, Scalar]]:
        model, held_out = self._model(asked), self.held_out
        weights = np.concatenate([array.ravel() for array in personal(asked, np.asarray)])
        loss, accuracy = evaluate(model.logits(weights, _rows(held_out.x)), held_out.y)
        return loss, len(held_out.y), {metrics.ACCURACY: accuracy}

    def _model(self, asked: Asked) -> LinearLayers:
        """Return the model that the server's weights are of, if it can be trained on the examples."""
        if asked.config.frozen_checksum:
            raise ValueError("a client without PyTorch has no frozen weights; install torch on the device")
        if not len(self.data.y):
            raise ValueError("the client has no examples")
        model = LinearLayers([array.shape for array in asked.weights], self.model)
        self.data.check(model.num_inputs, model.num_outputs)
        return model

    def _gradients(
        self, asked: Asked, model: LinearLayers, steps: int, losses: list[float]
    ) -> Iterator[Oracle]:
        """Yield the gradient of each step, which adds the loss where the step first takes it to `losses`."""
        rng = client_rng(self.seed, b"batches", self.node.client, asked.config.round)
        for rows in draw_batches(len(self.data.y), asked.config.batch_size, steps, rng).split():
            yield _noting_loss(partial(model.gradient, x=self._x(rows), y=self.data.y[rows]), losses)

    def _x(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        return _rows(self.data.x[rows])


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


@lru_cache(maxsize=1)
def load(spec: DataSpec | None) -> LocalData:
    """Return a device's own examples, or scikit-learn's digits without one; once per process."""
    if spec is not None:
        return local_data.read(spec)
    from fedtide.tasks.images import load_digits  # a device with data of its own needs no tasks

    x, y = load_digits()
    return LocalData((x / 16).astype(np.float32), y.astype(np.int64), 10, "the digits")


def client_fn(context: Context) -> NumPyClient:
    """Make the client of a node; see the beginning of this file for its node config."""
    run, config = context.run_config, context.node_config
    num_clients = run.get("num-clients")
    node = make_node(context, None if num_clients is None else int(num_clients))
    data = load(node.data)
    count = config.get("num-partitions", num_clients)
    if node.data is None or "num-partitions" in config:
        if count is None:
            raise ValueError(
                "node-config needs data, a file or folder, or num-partitions, such as num-partitions=3"
            )
        part = int(config.get("partition-id", node.client))
        data = data._replace(x=data.x[part :: int(count)], y=data.y[part :: int(count)])
    seed, held_out = int(run.get("seed", 0)), None
    if run.get("evaluate-on", "test") != "test" or run.get("evaluate-clients"):
        share = float(run.get("holdout", 0.2))
        data, held_out = data.hold_out(share, client_rng(seed, b"holdout", node.client, 0))
    max_steps, model = int(config.get("max-steps", 0)), str(run.get("model", ""))
    return NumPyClient(node, data, held_out, seed, max_steps, model)


app = ClientApp(client_fn=client_fn, mods=[one_object])
