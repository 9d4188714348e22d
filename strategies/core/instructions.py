"""The instructions of a round: what all clients get, and what is a client's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from flwr.common import EvaluateIns, FitIns, Parameters, Scalar
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from flexfl.ground.contract import FitConfig, fit
from strategies.core.parameters import FlatParameters

Instruction = TypeVar("Instruction", FitIns, EvaluateIns)


@dataclass(frozen=True)
class Task:
    """What a method sends besides the weights, to all clients of a round or to one of them.

    Attributes
    ----------
    weights
        One client's own to start from; None: those of the round.
    arrays
        Vectors of shape (M,), or (1,).
    scalars
        The method's own, by their names on the wire.
    learning_rate
        One client's own; None: that of the round.
    local_steps
        One client's own; None: those of the round.
    last_accepted
        See `FitConfig`.
    farewell
        Whether the client is asked for its state instead of training.
    """

    arrays: tuple[NDArray[Any], ...] = ()
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    learning_rate: float | None = None
    local_steps: int | None = None
    last_accepted: int | None = None
    farewell: bool = False
    weights: FlatParameters | None = None

    def wire(self) -> dict[str, Scalar]:
        """Return the scalars that differ from the common ones, as they are sent."""
        own: dict[str, Scalar] = dict(self.scalars)
        if self.learning_rate is not None:
            own[fit.LEARNING_RATE] = self.learning_rate
        if self.local_steps is not None:
            own |= {fit.LOCAL_STEPS: self.local_steps, fit.LOCAL_EPOCHS: 0}
        if self.last_accepted is not None:
            own[fit.LAST_ACCEPTED] = self.last_accepted
        if self.farewell:
            own[fit.FAREWELL] = True
        return own

    def added_to(self, config: FitConfig) -> FitConfig:
        """Return a client's configuration: the common one with what is its own."""
        if self.local_steps is not None:
            config = replace(config, local_steps=self.local_steps, local_epochs=0)
        return replace(
            config,
            learning_rate=config.learning_rate if self.learning_rate is None else self.learning_rate,
            last_accepted=self.last_accepted,
            farewell=self.farewell,
            own={**config.own, **self.scalars} if self.scalars else config.own,
        )


class RoundInstructions(list[tuple[ClientProxy, Instruction]], Generic[Instruction]):
    """Flower's list of instructions, which also tells what they have in common.

    An engine that carries them can so send the common part once; to Flower's own code it is a list.

    Parameters
    ----------
    kind
        `FitIns` or `EvaluateIns`.
    weights
        The global weights.
    shared
        The method's arrays for all clients.
    config
        The configuration for all clients.

    Attributes
    ----------
    own
        Tasks of the clients that have one of their own, by name.
    """

    def __init__(
        self,
        kind: Callable[[Parameters, dict[str, Scalar]], Instruction],
        weights: FlatParameters,
        shared: Sequence[NDArray[Any]],
        config: FitConfig,
    ) -> None:
        super().__init__()
        self.weights, self.shared, self.config = weights, tuple(shared), config
        self.own: dict[str, Task] = {}
        self._kind: Callable[[Parameters, dict[str, Scalar]], Instruction] = kind
        common = FlatParameters(weights.vector, weights.layout, self.shared) if self.shared else weights
        self._common: Instruction = kind(common, config.to_wire())

    def add(self, proxy: ClientProxy, task: Task | None) -> None:
        """Ask one more client; without a task of its own it gets the common instruction."""
        instruction = self._common
        if task is not None:
            self.own[proxy.cid] = task
            parameters, start = self._common.parameters, task.weights or self.weights
            if task.arrays or task.weights:
                parameters = FlatParameters(start.vector, start.layout, self.shared + task.arrays)
            instruction = self._kind(parameters, {**self._common.config, **task.wire()})
        self.append((proxy, instruction))
