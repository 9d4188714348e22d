"""Every method for a client with its own model and data: all it has to provide is a gradient.

`fit` does the local steps of whichever method the server runs, and reads and writes the messages. A Flower
client that solves a least-squares problem:

    class LeastSquares(flwr.client.Client):
        def __init__(self, x, y, store):
            self.x, self.y, self.store = x, y, store

        def gradient(self, w):
            rows = torch.randint(len(self.y), (self.batch_size,))
            return self.x[rows].T @ (self.x[rows] @ w - self.y[rows]) / self.batch_size

        def fit(self, ins):
            self.batch_size = ins.config["batch-size"] or len(self.y)
            reply, memory = single.fit(ins, self.gradient, len(self.y), self.store.load())
            if memory is not None:
                self.store.save(memory)
            return reply

Its `store` is one of clients/memory/stores.py, such as `FileStore("state", context.run_id, client)`. A client
that raises an exception counts as inactive in that round.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import torch
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from numpy.typing import NDArray
from torch import Tensor

from clients.deadline import LocalDeadline
from clients.memory.handshake import Memory, open_memory
from clients.rules import SGD, rule_named
from clients.rules.base import Oracle, no_fisher
from clients.training import check_memory
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
        Returns the gradient of the mean loss over one batch, shape (M,), given weights of shape (M,): all
        tensors that the server sent, flattened and concatenated in its order, in their type. It may be called
        several times per step, must not change the weights, and may reuse the memory of its result. If the
        last of the tensors are buffers (`FitConfig.buffer_arrays`), it may change these, and what it returns
        for them does not count.
    num_examples
        n_k, the size of the client's whole data set.
    memory
        What this function returned in an earlier round, the newest that was not None; None: nothing yet.
    steps
        s_k, the number of local steps that the client has time for; default: all that are asked for, or as
        many as the task's deadline allows, at least one.
    fisher
        Returns the diagonal of the Fisher information on the client's data, shape (M,), given weights. Only
        EFL needs it, unless its elasticity is 0.

    Returns
    -------
    reply, memory
        What to send; and what to store, durably, before the reply is sent: the server may rely on it. None
        where the method needs no memory at the client.

    Raises
    ------
    ValueError
        The task is impossible, its rule is unknown, or the client does no local step: it then has nothing to
        send.
    """
    start = time.monotonic()
    config, weights, own = _read(instruction)
    opened, resync = _open(memory, config, weights)
    reported: dict[str, Any] = {metrics.ROUND: config.round}
    if config.farewell:
        return _reply(list(opened.committed.values()), num_examples, reported), memory
    planned = config.planned_steps(num_examples)
    most = planned if steps is None else min(steps, planned)
    if most < 1:
        raise ValueError(f"{most} local steps; a client that does none has no reply to send")
    buffers = _flat(weights[len(weights) - config.buffer_arrays :], weights)
    gradient, fisher = (_with_buffers(oracle, buffers) for oracle in (gradient, fisher))
    rule = _make_rule(config, weights, own, opened, fisher)
    y, rate = rule.weights.clone(), config.learning_rate
    deadline = LocalDeadline(None if config.deadline_seconds is None else start + config.deadline_seconds)
    for done in range(1, most + 1):
        rule.step(y, gradient, rate)
        if not deadline.allows_another(done):
            break
    sent = [_numpy(array) for array in rule.upload(y, done, rate)]
    trained = len(weights) - config.buffer_arrays
    sent = _like(weights[trained:], buffers) + sent
    if rule.sends_weights:
        sent = _like(weights[:trained], y) + sent
    reported |= {metrics.STEPS: done} | ({metrics.RESYNC: True} if resync else {})
    if config.deadline_seconds is not None:
        reported[metrics.SECONDS] = time.monotonic() - start
    reply = _reply(sent, num_examples, reported)
    if config.last_accepted is None:
        return reply, None
    state = {key: _numpy(value) for key, value in rule.remember(y, done, rate).items()}
    return reply, opened.stage(config.round, state)


def personal_weights(instruction: EvaluateIns, memory: Memory | None = None) -> list[NDArray[Any]]:
    """Return the weights that the client is asked to evaluate, one array per tensor.

    Parameters
    ----------
    instruction
        What the server sent.
    memory
        As for `fit`.

    Returns
    -------
    list
        With APFL and pFedMe the client's personal model, with other methods the global one.

    Raises
    ------
    ValueError
        The task is impossible, or its rule is unknown.
    """
    config, weights, own = _read(instruction)
    opened, _ = _open(memory, config, weights)
    trained = len(weights) - config.buffer_arrays
    personal = _make_rule(config, weights, own, opened, no_fisher).personal()
    return _like(weights[:trained], personal) + weights[trained:]


def _read(instruction: FitIns | EvaluateIns) -> tuple[FitConfig, list[NDArray[Any]], list[NDArray[Any]]]:
    """Return the task, the weights, and the method's own arrays."""
    config = FitConfig.from_wire(instruction.config)
    return config, *config.split(parameters_to_ndarrays(instruction.parameters))


def _open(memory: Memory | None, config: FitConfig, weights: list[NDArray[Any]]) -> tuple[Memory, bool]:
    """Open the client's memory; one of another rule or model counts as none, with a warning."""
    if memory is not None and config.last_accepted is not None:
        size = sum(array.size for array in weights[: len(weights) - config.buffer_arrays])
        try:
            check_memory(memory, config.rule, size, np.result_type(*weights))
        except ValueError as error:
            logging.getLogger(__name__).warning("the client's memory cannot be used: %s", error)
            memory = None
    return open_memory(memory, config.last_accepted)


def _make_rule(
    config: FitConfig, weights: list[NDArray[Any]], own: list[NDArray[Any]], memory: Memory, fisher: Oracle
) -> SGD:
    start = _flat(weights[: len(weights) - config.buffer_arrays], weights)
    state = {key: torch.from_numpy(value.copy()) for key, value in memory.committed.items()}
    return rule_named(config.rule)(start, [torch.from_numpy(a) for a in own], config, state, fisher)


def _with_buffers(oracle: Oracle, buffers: Tensor) -> Oracle:
    """Return an oracle of the weights alone, given one of both, which may change the buffers."""
    if not len(buffers):
        return oracle

    def of_weights(at: Tensor) -> Tensor:
        whole = torch.cat([at, buffers])
        value = oracle(whole)[: len(at)]
        buffers.copy_(whole[len(at) :])
        return value

    return of_weights


def _flat(arrays: list[NDArray[Any]], weights: list[NDArray[Any]]) -> Tensor:
    """Return some of the weights as one vector, in the type that all of them have together."""
    parts = [np.empty(0, np.result_type(*weights)), *(array.ravel() for array in arrays)]
    return torch.from_numpy(np.concatenate(parts))


def _like(weights: list[NDArray[Any]], vector: Tensor) -> list[NDArray[Any]]:
    """Split a vector into arrays of the weights' shapes."""
    ends = np.cumsum([array.size for array in weights], dtype=int)
    parts = np.split(_numpy(vector), ends)[: len(weights)]
    return [part.reshape(array.shape) for part, array in zip(parts, weights, strict=True)]


def _reply(arrays: list[NDArray[Any]], num_examples: int, reported: dict[str, Any]) -> FitRes:
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), num_examples, reported)


def _numpy(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = value.numpy()
    return array
