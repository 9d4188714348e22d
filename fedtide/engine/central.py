"""Centralised training on the data of all members: the ideal that federated methods are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.draws import BatchIndices, draw_batches
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel, as_tensor, one_thread, own_draws
from clients.gradients.oracle import CohortOracle
from clients.gradients.oracles import make_oracle
from clients.rules import SGD
from clients.simulated.cohort import run
from fedtide.base.contract import FitConfig
from fedtide.tasks import Examples, FederatedData
from strategies.core.parameters import FloatVector


class CentralTrainer:
    """Plain SGD on the union of the members' data, as a client that has all of them would do it.

    Seed and round determine the batches. `cohort` is how gradients are computed, see
    `clients.gradients.oracles.make_oracle`.
    """

    def __init__(
        self,
        data: FederatedData,
        build: Callable[[], nn.Module],
        seed: int,
        cohort: str = "auto",
        precision: str = "float32",
    ) -> None:
        self.data, self.seed, self.cohort, self.precision = data, seed, cohort, precision
        self._build = build
        self._union: tuple[bytes, Examples] | None = None

    def __call__(
        self,
        weights: FloatVector,
        members: NDArray[np.intp],
        server_round: int,
        iterations: int,
        learning_rate: float,
        batch_size: int,
    ) -> FloatVector:
        """Do steps of SGD on the union of the members' data; each pass over it is shuffled again.

        Weights, and after them the buffers, have shape (M + B,). Batch size 0 takes all examples.
        """
        inputs, targets = (as_tensor(array) for array in self._examples(members))
        indices = self._draw(len(targets), batch_size, iterations, server_round)
        model = self.oracle.model
        y = as_tensor(weights).to(model.vector, copy=True)[None]
        augmentation, criterion = getattr(self.data, "augmentation", None), self.data.criterion
        batches = CohortBatches(inputs, targets, [indices], y.dtype, augmentation, criterion)
        config = FitConfig(
            round=server_round, learning_rate=learning_rate, batch_size=batch_size, local_steps=iterations
        )
        rule = SGD(y[:, : model.num_trainable].clone(), [], config, {})
        # One thread as at the clients: the result does not depend on the number of cores.
        with one_thread(), own_draws(model.device):
            run(rule, self.oracle, batches, y, y.new_full((1, 1), learning_rate))
        return y[0].numpy()

    @cached_property
    def oracle(self) -> CohortOracle:
        """Computes gradients; only a centralised strategy needs it."""
        model = FlatModel(self._build(), criterion=self.data.criterion, precision=self.precision)
        return make_oracle(model, self.data, self.cohort)[0]

    def _draw(self, num_examples: int, batch_size: int, iterations: int, server_round: int) -> BatchIndices:
        """Draw the batches of a round, and what augmentation and dropout need for them."""
        rng, of_changes, of_model = (
            np.random.default_rng([self.seed, *purpose, server_round])
            for purpose in (b"central", b"central augmentation", b"central dropout")
        )
        indices = draw_batches(num_examples, batch_size, iterations, rng)
        if (augmentation := getattr(self.data, "augmentation", None)) is not None:
            indices = indices._replace(changes=augmentation.draw(len(indices.indices), of_changes))
        return indices._replace(seeds=of_model.integers(2**63, size=iterations))

    def _examples(self, members: NDArray[np.intp]) -> Examples:
        """Return the union, which changes only when a client arrives or departs."""
        if self._union is None or self._union[0] != members.tobytes():
            union = self.data.train_set(members)
            self.data.criterion.check(union[1], self.data.num_outputs)
            self._union = members.tobytes(), union
        return self._union[1]
