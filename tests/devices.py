"""Clients in float64 with the real rules and the real memory, and gradients that a test defines."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.common import FitIns, FitRes, parameters_to_ndarrays

from clients import single
from clients.memory.handshake import Memory
from fedtide.base.contract import FitConfig

Gradient = Callable[[np.ndarray], np.ndarray]

# A method for each rule of clients.
BY_RULE: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("fedavg", "fedprox", "scaffold", "feddyn", "apfl", "pfedme", "efl")),
    *((name, {"memory": "client"}) for name in ("mimic", "fedlaavg", "focus")),
    ("focus", {"gradient": "last"}),
    ("ghbm", {"anchor": "local"}),
]


class Device:
    """One client.

    `sent`, `update` and `correction` belong to its last task: the arrays that it sent, the difference of its
    local weights to the global ones (where they are sent, or Fisher information is computed), and MimiC's
    c_i.
    """

    def __init__(self, num_examples: int, gradient: Gradient, fisher: Gradient | None = None) -> None:
        self.num_examples, self.gradient, self.fisher = num_examples, gradient, fisher
        self.memory = Memory()

    def fit(self, instruction: FitIns, steps: int) -> FitRes:
        config = FitConfig.from_wire(instruction.config)
        weights, own = config.split(parameters_to_ndarrays(instruction.parameters))
        state = self.memory.open(config.last_accepted or 0)[0].committed
        self.correction = own[0] - state["update"] if own and "update" in state else np.zeros(1)
        self.start = np.concatenate([array.ravel() for array in weights])
        self.update = np.zeros_like(self.start)
        result, memory = single.fit(
            instruction, self._gradient, self.num_examples, self.memory, steps=steps, fisher=self._fisher
        )
        self.memory = self.memory if memory is None else memory
        self.sent = parameters_to_ndarrays(result.parameters)
        if [array.shape for array in self.sent] == [array.shape for array in weights]:
            self.update = np.concatenate([array.ravel() for array in self.sent]) - self.start
        return result

    def state(self) -> dict[str, np.ndarray]:
        """The newest state, which holds if the last reply was accepted."""
        memory = self.memory
        return dict(memory.committed if memory.pending is None else memory.pending)

    def _gradient(self, at: torch.Tensor) -> torch.Tensor:
        """In a buffer that the next call overwrites."""
        self._buffer = getattr(self, "_buffer", torch.empty_like(at))
        return self._buffer.copy_(torch.from_numpy(self.gradient(at.numpy())))

    def _fisher(self, at: torch.Tensor) -> torch.Tensor:
        assert self.fisher is not None
        self.update = at.numpy() - self.start  # `at`: the local weights after all steps
        return torch.from_numpy(self.fisher(at.numpy()))
