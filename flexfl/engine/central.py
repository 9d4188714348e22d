"""Centralised training on the data of all members: the ideal that federated methods are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.draws import draw_batches
from clients.gradients.flat import FlatModel, one_thread, own_draws
from flexfl.tasks import Examples, FederatedData
from strategies.core.parameters import FloatVector


class CentralTrainer:
    """Plain SGD on the union of the members' data.

    Parameters
    ----------
    data
        The data of all clients.
    build
        Makes the model.
    seed
        Together with the round, it determines the batches.
    """

    def __init__(self, data: FederatedData, build: Callable[[], nn.Module], seed: int) -> None:
        self.data, self.seed = data, seed
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
        """Train, see `strategies.core.interfaces.Trainer`; each pass over the union is shuffled anew."""
        x, targets = self._examples(members)
        rng, of_changes, of_model = (
            np.random.default_rng([self.seed, *purpose, server_round])
            for purpose in (b"central", b"central augmentation", b"central dropout")
        )
        augmentation = getattr(self.data, "augmentation", None)
        self.model.load(weights)
        y = self.model.vector
        # One thread as at the clients: the result does not depend on the number of cores.
        with one_thread(), own_draws(self.model.device):
            for rows in draw_batches(len(targets), batch_size, iterations, rng).split():
                batch = torch.from_numpy(x[rows]), torch.from_numpy(targets[rows])
                if augmentation is not None:
                    changes = torch.from_numpy(augmentation.draw(len(rows), of_changes))
                    batch = augmentation.apply(batch[0], changes), batch[1]
                self.model.generator.manual_seed(int(of_model.integers(2**63)))
                gradient, _ = self.model.gradient(y, batch)
                y.sub_(gradient, alpha=learning_rate)
        return y.numpy().copy()

    @cached_property
    def model(self) -> FlatModel:
        """The model; only a centralised strategy needs it."""
        return FlatModel(self._build(), criterion=self.data.criterion)

    def _examples(self, members: NDArray[np.intp]) -> Examples:
        """Return the union, which changes only when a client arrives or departs."""
        if self._union is None or self._union[0] != members.tobytes():
            self._union = members.tobytes(), self.data.train_set(members)
        return self._union[1]
