"""A program in JAX: a round is one compiled function, with a device of XLA for each core.

A device trains some clients at a time, as many as are fastest, and adds up their weights. It knows logistic
regression and the 2NN.
"""

from __future__ import annotations

import math
import os
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, linear_layers

jax.config.update("jax_num_cpu_devices", os.cpu_count())
AT_A_TIME = {"logistic": 5}  # clients that a device trains; of other models 1

Weights = list[Array]  # of each layer the weights, then the biases


def cross_entropy(weights: Weights, x: Array, y: Array) -> Array:
    """Return the mean cross-entropy of linear layers with ReLU."""
    for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jax.nn.relu(x @ w.T + b)
    logs = jax.nn.log_softmax(x @ weights[-2].T + weights[-1])
    return -jnp.mean(jnp.take_along_axis(logs, y[:, None], 1))


class Loop:
    """Rounds of federated averaging, for clients of one size."""

    def __init__(self, job: Job) -> None:
        layers, shards, count = linear_layers(job), Shards(job["shards"]), job["num_clients"]
        x, y = shards.x.numpy(), shards.y.numpy().astype(np.int32)
        size = len(y) // count
        if shards.ends != list(range(size, len(y) + 1, size)):
            raise ValueError("this program knows clients of one size only")
        self.job, self.key = job, jax.random.key(0)
        self.mesh = Mesh(np.array(jax.devices()), "core")
        weights = [value.numpy() for layer in layers for value in layer.state_dict().values()]
        arrays = weights, x.reshape(count, size, -1), y.reshape(count, size)
        self.weights, *self.data = jax.device_put(arrays, NamedSharding(self.mesh, PartitionSpec()))

    def round(self) -> None:
        """Train K random clients and average their weights."""
        self.key, key = jax.random.split(self.key)
        self.weights = jax.block_until_ready(self.average(self.weights, *self.data, key))

    @partial(jax.jit, static_argnums=0)
    def average(self, start: Weights, x: Array, y: Array, key: Array) -> Weights:
        """Return the mean of the weights of K random clients."""
        count, (select, draw) = self.job["clients_per_round"], jax.random.split(key)
        chosen, keys = jax.random.permutation(select, len(y))[:count], jax.random.split(draw, count)
        at_a_time = math.gcd(AT_A_TIME.get(self.job["model"], 1), count // self.mesh.size)
        whole, part = PartitionSpec(), PartitionSpec("core")

        @partial(jax.shard_map, mesh=self.mesh, in_specs=(whole,) * 3 + (part,) * 2, out_specs=whole)
        def mean(start: Weights, x: Array, y: Array, chosen: Array, keys: Array) -> Weights:
            start = lax.pcast(start, "core", to="varying")

            def add(sums: Weights, some: tuple[Array, Array]) -> tuple[Weights, None]:
                trained = jax.vmap(lambda client, key: self.train(start, x[client], y[client], key))(*some)
                return [s + w.sum(0) for s, w in zip(sums, trained, strict=True)], None

            groups = chosen.reshape(-1, at_a_time), keys.reshape(-1, at_a_time)
            sums, _ = lax.scan(add, [jnp.zeros_like(w) for w in start], groups)
            return [lax.psum(s, "core") / count for s in sums]

        return mean(start, x, y, chosen, keys)

    def train(self, weights: Weights, x: Array, y: Array, key: Array) -> Weights:
        """Do a client's steps, in reshuffled passes."""
        steps, batch = self.job["local_steps"], self.job["batch_size"]
        passes = -(-steps * batch // len(y))
        order = jnp.argsort(jax.random.uniform(key, (passes, len(y)))).reshape(-1)

        def step(weights: Weights, rows: Array) -> tuple[Weights, None]:
            changes = jax.grad(cross_entropy)(weights, x[rows], y[rows])
            return [w - self.job["learning_rate"] * c for w, c in zip(weights, changes, strict=True)], None

        return lax.scan(step, weights, order[: steps * batch].reshape(steps, batch))[0]


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    loop = Loop(job)
    while not clock.enough:
        loop.round()
        clock.tick()
    if not all(np.isfinite(w).all() for w in loop.weights):
        raise RuntimeError("the weights are not finite")
