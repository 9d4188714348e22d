"""Clients in float64 with the real rules and the real memory; tests say what their gradients are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

from clients.memory.handshake import Memory
from clients.training import rule_of

Gradient = Callable[[np.ndarray], np.ndarray]


class Device:
    """One client that does its work in memory.

    `correction` and `sent` are what `Memory` and the rule made of the last task.
    """

    def __init__(self, num_examples: int, gradient: Gradient) -> None:
        self.num_examples, self.gradient, self.memory = num_examples, gradient, Memory()

    def fit(self, instruction: FitIns, steps: int) -> FitRes:
        config: Any = instruction.config
        arrays = parameters_to_ndarrays(instruction.parameters)
        count = int(config["model-arrays"])
        shapes = [array.shape for array in arrays[:count]]
        w = torch.from_numpy(np.concatenate([array.ravel() for array in arrays[:count]]))
        own = [torch.from_numpy(array) for array in arrays[count:]]
        memory, resync = self.memory.open(int(config.get("last-accepted", 0)))
        state = {key: torch.from_numpy(value.copy()) for key, value in memory.committed.items()}
        self.correction = (
            (own[0] - state["update"]).numpy() if own and "update" in state else np.zeros(len(w))
        )
        y, rule, rate = w.clone(), rule_of(config)(w, own, config, state), float(config["learning-rate"])
        steps = 1 if config.get("rule") == "farewell" else steps
        for _ in range(steps):
            rule.step(y, lambda at: torch.from_numpy(self.gradient(at.numpy())), rate)
        self.sent = [array.numpy() for array in rule.upload(y, steps, rate)]
        if "last-accepted" in config:
            new = {key: value.numpy() for key, value in rule.remember(y, steps, rate).items()}
            self.memory = memory.stage(int(config["round"]), new)
        weights: list[np.ndarray] = []
        if rule.sends_weights:
            cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
            weights = [p.reshape(s) for p, s in zip(np.split(y.numpy(), cuts), shapes, strict=True)]
        metrics: dict[str, Any] = {"steps": steps, "round": config["round"]}
        metrics |= {"resync": True} if resync else {}
        parameters = ndarrays_to_parameters([*weights, *self.sent])
        return FitRes(Status(Code.OK, ""), parameters, self.num_examples, metrics)
