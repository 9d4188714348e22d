"""Models of earlier rounds: those that clients hold, and the last ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import FlatParameters, FloatVector, Layout
from strategies.core.roster import Clients
from strategies.core.state import StateDict, Stateful, extend, take


class HeldModels(Stateful):
    """A model for each client that holds one; those who got theirs in the same round hold the same.

    There are never more models than rounds, nor more than clients that hold one, apart from the newest, which
    is kept even if nobody holds it. Clients of `holders`, shape (N,), hold `vector` at first, shape (M,).
    """

    saved = ("held", "newest")

    def __init__(self, layout: Layout, holders: NDArray[np.bool_], vector: FloatVector) -> None:
        self.layout = layout
        self.held: NDArray[np.int64] = np.where(holders, 0, -1)  # round of each client's model, -1: none
        self.newest = 0
        self._models = {0: self._packed(vector)}
        self._holders = {0: int(holders.sum()) + 1}  # one more for the newest

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, client: int) -> bool:
        return client < len(self.held) and bool(self.held[client] >= 0)

    def of(self, client: int) -> FlatParameters:
        """Return a client's model; the newest for a client that holds none."""
        return self._models[int(self.held[client]) if client in self else self.newest]

    def sum(self, clients: Clients) -> NDArray[np.float64]:
        """Return the sum of the models of some clients that hold one, shape (M,)."""
        total = np.zeros(self.layout.size)
        for held, count in self._counts(clients):
            model = self._models[held].vector
            total += model if count == 1 else count * model.astype(np.float64)
        return total

    def give(self, clients: Clients, server_round: int, vector: FloatVector) -> None:
        """Give some clients the model of this round, shape (M,), in the type in which they are sent it."""
        self.held = extend(self.held, int(clients.max()) + 1, -1)
        for held, count in self._counts(clients[self.held[clients] >= 0]):
            self._release(held, count)
        self._models[server_round], self._holders[server_round] = self._packed(vector), len(clients) + 1
        self._release(self.newest, 1)
        self.newest = self.held[clients] = server_round

    def give_newest(self, client: int) -> None:
        """Give a client that holds none the newest model."""
        self.held = extend(self.held, client + 1, -1)
        self.held[client] = self.newest
        self._holders[self.newest] += 1

    def drop(self, client: int) -> None:
        """Take its model from a client that holds one."""
        self._release(int(self.held[client]), 1)
        self.held[client] = -1

    def shift(self, change: FloatVector) -> None:
        """Add the same change, shape (M,), to all models."""
        self._models = {held: self._packed(model.vector + change) for held, model in self._models.items()}

    def state_dict(self) -> StateDict:
        """Return also the models, shape (R, M), their rounds and numbers of holders, shape (R,)."""
        vectors = [model.vector for model in self._models.values()]  # one at least: the newest
        return {
            **super().state_dict(),
            "rounds": np.array([*self._models], np.int64),
            "holders": np.array([*self._holders.values()], np.int64),
            "vectors": np.array(vectors, self.layout.dtype),
        }

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        rounds, vectors = take(state, "rounds").tolist(), take(state, "vectors")
        models = [self._packed(np.array(vector)) for vector in vectors]
        self._models = dict(zip(rounds, models, strict=True))
        self._holders = dict(zip(rounds, take(state, "holders").tolist(), strict=True))

    def _packed(self, vector: FloatVector) -> FlatParameters:
        return FlatParameters(vector.astype(self.layout.dtype), self.layout)

    def _counts(self, clients: Clients) -> list[tuple[int, int]]:
        """Return the rounds of some clients' models, and how many of them hold each."""
        rounds, counts = np.unique(self.held[clients], return_counts=True)
        return [*zip(rounds.tolist(), counts.tolist(), strict=True)]

    def _release(self, held: int, count: int) -> None:
        """Count some holders less of a model; without any, it is forgotten."""
        self._holders[held] -= count
        if not self._holders[held]:
            del self._models[held], self._holders[held]


class ModelWindow(Stateful):
    """The last models, `length` of them, in the type in which clients are sent them."""

    saved = ("_models", "_count")

    def __init__(self, layout: Layout, length: int) -> None:
        self._models: FloatVector = np.zeros((length, layout.size), layout.dtype)  # a ring
        self._count = 0  # of models so far

    def add(self, vector: FloatVector) -> None:
        """Add the newest model, shape (M,); the oldest one is forgotten."""
        self._models[self._count % len(self._models)] = vector
        self._count += 1

    @property
    def oldest(self) -> FloatVector | None:
        """The oldest model, shape (M,); None before there are `length`."""
        return self._models[self._count % len(self._models)] if self._count >= len(self._models) else None
