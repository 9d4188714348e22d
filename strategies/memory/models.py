"""Models that clients go on from, kept as long as a client holds them."""

from __future__ import annotations

import numpy as np

from strategies.core.parameters import FlatParameters, FloatVector, Layout, stacked
from strategies.core.state import StateDict, Stateful, take


class ModelsInUse(Stateful):
    """Models by the round that made them, with the number of clients that hold each.

    Clients that took part in the same round hold the same model: there are never more models than rounds, nor
    more than clients that hold one.

    Parameters
    ----------
    layout
        Layout of the weights.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._models: dict[int, FlatParameters] = {}
        self._holders: dict[int, int] = {}

    def __getitem__(self, server_round: int) -> FlatParameters:
        return self._models[server_round]

    def __len__(self) -> int:
        return len(self._models)

    def add(self, server_round: int, vector: FloatVector) -> FlatParameters:
        """Add the model of a round, shape (M,), in the type in which clients get it."""
        model = FlatParameters(vector.astype(self.layout.dtype), self.layout)
        self._models[server_round], self._holders[server_round] = model, 0
        return model

    def hold(self, server_round: int, clients: int) -> None:
        """Count some more clients that hold a model."""
        self._holders[server_round] += clients

    def release(self, server_round: int, clients: int) -> None:
        """Count some clients less that hold a model; without any, it is forgotten."""
        self._holders[server_round] -= clients
        if not self._holders[server_round]:
            del self._models[server_round], self._holders[server_round]

    def shift(self, change: FloatVector) -> None:
        """Add the same change, shape (M,), to all models."""
        for server_round, model in self._models.items():
            vector = (model.vector + change).astype(self.layout.dtype)
            self._models[server_round] = FlatParameters(vector, self.layout)

    def state_dict(self) -> StateDict:
        """Return rounds and numbers of holders, shape (R,), and the models, shape (R, M)."""
        vectors = stacked(self._models.values(), self.layout)
        rounds, holders = np.array([*self._models], np.int64), np.array([*self._holders.values()], np.int64)
        return {"rounds": rounds, "holders": holders, "vectors": vectors}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the models."""
        self._models, self._holders = {}, {}
        rounds, holders = take(state, "rounds").tolist(), take(state, "holders").tolist()
        for server_round, count, vector in zip(rounds, holders, take(state, "vectors"), strict=True):
            self.add(server_round, np.array(vector))
            self.hold(server_round, count)
