"""The models of the last rounds."""

from __future__ import annotations

import numpy as np

from strategies.core.parameters import FloatVector, Layout
from strategies.core.state import Stateful


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
