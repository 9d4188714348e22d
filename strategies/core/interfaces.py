"""What strategies exchange with the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.common import FitIns, Scalar
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.parameters import FlatParameters, FloatVector

EvaluateFn = Callable[[int, list[NDArray[Any]], dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


@runtime_checkable
class AvailabilityManager(Protocol):
    """A client manager that knows who is there without holding an object for each client."""

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are online, in ascending order."""

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Clients that arrived and that departed since the previous round."""

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client."""


class Trainer(Protocol):
    """Trains where the data are, without any client."""

    def __call__(
        self,
        weights: FloatVector,
        members: NDArray[np.intp],
        server_round: int,
        iterations: int,
        learning_rate: float,
        batch_size: int,
    ) -> FloatVector:
        """Do steps of SGD on the union of the members' data; the new weights, shape (M,).

        Which examples are drawn has to follow from the round alone. `batch_size` 0 takes all in every step.
        """


@dataclass(frozen=True)
class Task:
    """What a client gets besides the weights: arrays, and scalars of the configuration."""

    arrays: tuple[NDArray[Any], ...] = ()
    config: tuple[tuple[str, Scalar], ...] = ()

    def added_to(self, instruction: FitIns) -> FitIns:
        """Return the instruction with these arrays and scalars; where there are none, the same object."""
        if not self.arrays and not self.config:
            return instruction
        parameters = instruction.parameters
        if self.arrays:
            if not isinstance(parameters, FlatParameters):
                raise TypeError("a task is added to flat parameters")
            extra = (*parameters.extra, *self.arrays)
            parameters = FlatParameters(parameters.vector, parameters.layout, extra)
        return FitIns(parameters, {**instruction.config, **dict(self.config)})
