"""FedJAX's own federated averaging and sampler; linear layers with ReLU, in its default backend."""

from __future__ import annotations

import fedjax
import jax
import numpy as np
from fedjax.algorithms import fed_avg
from jax import Array

from benchmarks.measure import Clock, Job
from benchmarks.with_jax import cross_entropy
from benchmarks.workloads import Shards, linear_layers

jax.tree_map = jax.tree.map  # FedJAX 0.0.17 calls it by the name that it had in 2023


class Loop:
    """Rounds of federated averaging."""

    def __init__(self, job: Job) -> None:
        layers, shards = linear_layers(job), Shards(job["shards"])
        x, y = shards.x.flatten(1).numpy(), shards.y.numpy().astype(np.int32)
        parts = zip(*(np.split(array, shards.ends[:-1]) for array in (x, y)), strict=True)
        data = fedjax.InMemoryFederatedData(
            {f"{client:07}".encode(): {"x": x, "y": y} for client, (x, y) in enumerate(parts)}
        )
        self.algorithm = fed_avg.federated_averaging(
            jax.grad(lambda weights, batch, key: cross_entropy(weights, batch["x"], batch["y"])),
            fedjax.optimizers.sgd(job["learning_rate"]),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                job["batch_size"], num_epochs=None, num_steps=job["local_steps"], drop_remainder=True
            ),
        )
        self.sampler = fedjax.client_samplers.UniformGetClientSampler(data, job["clients_per_round"], 0)
        weights = [value.numpy() for layer in layers for value in layer.state_dict().values()]
        self.state = self.algorithm.init(jax.device_put(weights))

    def round(self) -> None:
        """Train K random clients and average their weights."""
        self.state, _ = self.algorithm.apply(self.state, self.sampler.sample())
        jax.block_until_ready(self.state.params)

    @property
    def weights(self) -> list[Array]:
        """Of each layer the weights, then the biases."""
        return self.state.params


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    loop = Loop(job)
    while not clock.enough:
        loop.round()
        clock.tick()
