"""A client without PyTorch, for small devices: local training in NumPy, with every method.

It trains `model=logistic` and `model=mlp` on classes, by the rules and with the memory of our other clients:
where both have the same examples, both send the same weights, up to the rounding of sums.

Its node config is that of clients/device/node.py. Without `data`, its examples are one of `num-partitions`
parts of scikit-learn's digits (by default as many as clients). With `max-steps` it is a slow device that does
at most so many local steps per round.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import ClientApp
from numpy.typing import NDArray

from clients import single
from clients.client import FlexibleClient
from clients.device import local_data
from clients.device.local_data import DataSpec, LocalData
from clients.device.node import Node, make_node
from clients.device.numpy_model import LinearLayers, evaluate
from clients.draws import client_rng, draw_batches, draw_fisher
from clients.memory.handshake import Memory
from clients.rules.vectors import Vector, as_array
from clients.single import Trained
from fedtide.ground.contract import FitConfig, Scalar, metrics
from fedtide.ground.one_object import one_object


class NumPyClient(FlexibleClient):
    """A client that trains linear layers on its own examples; without `held_out` they also evaluate it.

    It does at most `max_steps` local steps per round; 0: as many as it is asked for. `model` is what the run
    names, empty for the task's own.
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

    def train(
        self, config: FitConfig, arrays: list[NDArray[Any]], memory: Memory | None, until: float | None
    ) -> Trained:
        """See `FlexibleClient.train`.

        A ValueError says that the task is impossible, the model is not one of these, or there are no
        examples.
        """
        model, n = self._model(config, config.split(arrays)[0]), len(self.data.y)
        planned = config.planned_steps(n)
        steps = min(planned, self.max_steps or planned)
        losses: list[float] = []
        done = single.train(
            config,
            arrays,
            self._gradients(model, config, steps, losses),
            n,
            memory,
            as_vector=np.asarray,
            steps=steps,
            fisher=lambda at: model.fisher(
                as_array(at), *self._examples(draw_fisher(n, config, self.node.client, self.seed))
            ),
            until=until,
            stop=self.node.stopping,
        )
        if losses:
            done.reported[metrics.TRAIN_LOSS] = float(np.mean(losses))
            done.reported[metrics.FINAL_LOSS] = losses[-1]
            done.reported[metrics.RMS_LOSS] = float(np.sqrt(np.mean(np.square(losses))))
        return done

    def score(
        self, config: FitConfig, arrays: list[NDArray[Any]], memory: Memory | None
    ) -> tuple[float, int, dict[str, Scalar]]:
        """See `FlexibleClient.score`; the examples are those that it held out."""
        model, held_out = self._model(config, config.split(arrays)[0]), self.held_out
        own = single.personal(config, arrays, memory, np.asarray)
        logits = model.logits(np.concatenate([array.ravel() for array in own]), _rows(held_out.x))
        loss, accuracy = evaluate(logits, held_out.y)
        return loss, len(held_out.y), {metrics.ACCURACY: accuracy}

    def _model(self, config: FitConfig, weights: list[NDArray[Any]]) -> LinearLayers:
        """Return the model that the server's weights are of, if it can be trained on the examples."""
        if config.frozen_checksum:
            raise ValueError("a client without PyTorch has no frozen weights; install torch on the device")
        if not len(self.data.y):
            raise ValueError("the client has no examples")
        model = LinearLayers([array.shape for array in weights], self.model)
        self.data.check(model.num_inputs, model.num_outputs)
        return model

    def _gradients(
        self, model: LinearLayers, config: FitConfig, steps: int, losses: list[float]
    ) -> Iterator[_Batch]:
        """Yield the gradient of each step, and note the loss where a step first took it."""
        rng = client_rng(self.seed, b"batches", self.node.client, config.round)
        for rows in draw_batches(len(self.data.y), config.batch_size, steps, rng).split():
            yield _Batch(model, *self._examples(rows), losses)

    def _examples(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return _rows(self.data.x[rows]), self.data.y[rows]


class _Batch:
    """The gradient of the mean loss over one batch; the first loss is added to `losses`."""

    def __init__(
        self, model: LinearLayers, x: NDArray[np.float32], y: NDArray[np.int64], losses: list[float]
    ) -> None:
        self.model, self.x, self.y = model, x, y
        self.losses: list[float] | None = losses

    def __call__(self, at: Vector) -> Vector:
        gradient, loss = self.model.gradient(as_array(at), self.x, self.y)
        if self.losses is not None:
            self.losses.append(loss)
            self.losses = None
        return gradient


def _rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs as vectors, shape (n, d)."""
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


@lru_cache(maxsize=1)
def load(spec: DataSpec | None) -> LocalData:
    """Return a device's own examples, or scikit-learn's digits without one; once per process."""
    if spec is not None:
        return local_data.read(spec)
    from fedtide.tasks.digits import load_digits  # a device with data of its own needs no tasks

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
