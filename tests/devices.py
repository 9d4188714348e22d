"""Clients in float64 with the real rules and the real memory; tests say what their gradients are."""

from collections.abc import Callable

import numpy as np
import torch
from flwr.common import FitIns, FitRes, parameters_to_ndarrays

from clients import single
from clients.memory.handshake import Memory
from flexfl.contract import FitConfig

Gradient = Callable[[np.ndarray], np.ndarray]


class Device:
    """One client that does its work in memory.

    `sent`, `update` and `correction` are what came of the last task: the arrays that it sent, by how much
    its local weights differ from the global ones (where they are sent or asked for Fisher information), and
    MimiC's c_i.
    """

    def __init__(self, num_examples: int, gradient: Gradient, fisher: Gradient | None = None) -> None:
        self.num_examples, self.gradient, self.fisher = num_examples, gradient, fisher
        self.memory = Memory()

    def fit(self, instruction: FitIns, steps: int) -> FitRes:
        config = FitConfig.from_wire(instruction.config)
        arrays = parameters_to_ndarrays(instruction.parameters)
        own = arrays[config.model_arrays :]
        known = self.memory.open(config.last_accepted or 0)[0].committed
        self.correction = own[0] - known["update"] if own and "update" in known else np.zeros(1)
        self.local = np.concatenate([array.ravel() for array in arrays[: config.model_arrays]])
        self.update = np.zeros_like(self.local)
        result, kept = single.fit(
            instruction, self._step, self.num_examples, self.memory, steps=steps, fisher=self._fisher
        )
        self.memory = self.memory if kept is None else kept
        self.sent = parameters_to_ndarrays(result.parameters)
        if [array.shape for array in self.sent] == [array.shape for array in arrays[: config.model_arrays]]:
            self.update = np.concatenate([array.ravel() for array in self.sent]) - self.local
        return result

    def state(self) -> dict[str, np.ndarray]:
        """The newest state, which holds if the last reply was accepted."""
        memory = self.memory
        return dict(memory.committed if memory.pending is None else memory.pending)

    def _step(self, at: torch.Tensor) -> torch.Tensor:
        """The gradient, in memory that the next call overwrites."""
        self._buffer = getattr(self, "_buffer", torch.empty_like(at))
        return self._buffer.copy_(torch.from_numpy(self.gradient(at.numpy())))

    def _fisher(self, at: torch.Tensor) -> torch.Tensor:
        assert self.fisher is not None
        self.update = at.numpy() - self.local  # the local weights after all steps
        return torch.from_numpy(self.fisher(at.numpy()))
