"""A client whose gradients come from anywhere: every method for a model that is not one of ours.

The caller has the data and computes gradients of its loss at flat weights; the rules of the methods, the
memory between rounds and the messages are as everywhere else in this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.rules import rule_named
from clients.rules.base import Oracle, no_fisher
from flexfl.contract import FitConfig, metrics


def fit(
    instruction: FitIns,
    gradient: Oracle,
    num_examples: int,
    memory: Memory | None = None,
    *,
    steps: int | None = None,
    fisher: Oracle = no_fisher,
) -> tuple[FitRes, Memory | None]:
    """Do one client's part of a round.

    Parameters
    ----------
    instruction
        What the server sent.
    gradient
        Weights, shape (M,), to the gradient of a batch of the client's choice, shape (M,).
    num_examples
        n_k.
    memory
        What this function returned in the client's last round; None: nothing yet.
    steps
        s_k, how many local steps the client has time for; default: all that it is asked for.
    fisher
        Weights to the diagonal of the Fisher information on the client's data; EFL needs it.

    Returns
    -------
    reply, memory
        What to send, and what to keep, durably, before the reply goes out; None: nothing.

    Raises
    ------
    ValueError
        The task is not one of this project, or its rule is unknown.
    """
    config = FitConfig.from_wire(instruction.config)
    arrays = parameters_to_ndarrays(instruction.parameters)
    count = config.model_arrays or len(arrays)
    weights = torch.from_numpy(np.concatenate([array.ravel() for array in arrays[:count]]))
    opened, resync = (memory or Memory()).open(config.last_accepted or 0)
    told: dict[str, Any] = {metrics.ROUND: config.round}
    if config.farewell:
        return _reply(list(opened.committed.values()), num_examples, told), memory
    state = {key: torch.from_numpy(value.copy()) for key, value in opened.committed.items()}
    own = [torch.from_numpy(array) for array in arrays[count:]]
    rule = rule_named(config.rule)(weights, own, config, state, fisher)
    y, rate, planned = weights.clone(), config.learning_rate, config.planned_steps(num_examples)
    done = planned if steps is None else min(steps, planned)
    for _ in range(done):
        rule.step(y, gradient, rate)
    sent = [_numpy(array) for array in rule.upload(y, done, rate)]
    told |= {metrics.STEPS: done} | ({metrics.RESYNC: True} if resync else {})
    kept = None
    if config.last_accepted is not None:
        new = {key: _numpy(value) for key, value in rule.remember(y, done, rate).items()}
        kept = opened.stage(config.round, new)
    if rule.sends_weights:
        parts = np.split(_numpy(y), np.cumsum([array.size for array in arrays[:count]])[:-1])
        sent = [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=False)] + sent
    return _reply(sent, num_examples, told), kept


def _reply(arrays: list[NDArray[Any]], num_examples: int, told: dict[str, Any]) -> FitRes:
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), num_examples, told)


def _numpy(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = value.numpy()
    return array
