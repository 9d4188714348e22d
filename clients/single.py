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

import time
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
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

from clients.memory.handshake import Memory, open_memory
from clients.rules import usable_memory
from clients.rules.base import Oracle, no_fisher
from clients.rules.vectors import Vector, as_array, copy_of
from clients.training import LocalDeadline, do_steps, finish, make_rule, of_weights
from fedtide.ground.contract import FitConfig, metrics


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
    config, arrays = read(instruction)
    until = None if config.deadline_seconds is None else start + config.deadline_seconds
    done = train(
        config,
        arrays,
        repeat(gradient),
        num_examples,
        memory,
        as_vector=_tensor,
        steps=steps,
        fisher=fisher,
        until=until,
    )
    if until is not None and not config.farewell:
        done.reported[metrics.SECONDS] = time.monotonic() - start
    reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(done.arrays), num_examples, done.reported)
    return reply, done.memory


class Trained(NamedTuple):
    """A client's part of a round."""

    arrays: list[NDArray[Any]]  # to send
    reported: dict[str, Any]  # the metrics of the reply, see `fedtide.ground.contract.metrics`
    memory: Memory | None  # see `fit`
    num_examples: int
    seconds: float  # that the local steps took
    lost: bool = False  # whether the trace that the client replays loses the reply


def train(
    config: FitConfig,
    arrays: list[NDArray[Any]],
    gradients: Iterable[Oracle],
    num_examples: int,
    memory: Memory | None,
    *,
    as_vector: Callable[[NDArray[Any]], Vector],
    steps: int | None = None,
    fisher: Oracle = no_fisher,
    until: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trained:
    """Do one client's part of a round, as `fit`, given the parts of the message and each step's gradient.

    The rule and the gradients work on what `as_vector` makes of an array: `numpy.asarray` or
    `torch.from_numpy`. `until` and `stop` are those of `LocalDeadline`.
    """
    start = time.monotonic()
    weights, own = config.split(arrays)
    opened, resync = _open(memory, config, weights)
    reported: dict[str, Any] = {metrics.ROUND: config.round, metrics.RULE: config.rule}
    if config.farewell:
        return Trained(list(opened.committed.values()), reported, memory, num_examples, 0.0)
    planned = config.planned_steps(num_examples)
    wanted = planned if steps is None else min(steps, planned)
    if wanted < 1:
        raise ValueError(f"{wanted} local steps; a client that does none has no reply to send")
    at_start = as_vector(_flat(weights))
    y, rate = copy_of(at_start), config.learning_rate
    rule = make_rule(
        config,
        at_start[:, : _num_trained(config, weights)],
        [],
        [own],
        [opened],
        as_vector,
        lambda at: of_weights(rule, _of_rows(fisher), y)(at),
    )
    oracles = ((1, _of_rows(gradient)) for _, gradient in zip(range(wanted), gradients, strict=False))
    done = do_steps(rule, y, oracles, rate, LocalDeadline(until, stop))
    extra, new = finish(rule, y, done, rate, [opened], [config.round])
    local = _split(as_array(y)[0], weights)
    trained = len(weights) - config.buffer_arrays
    sent = [*(local if rule.sends_weights else local[trained:]), *(extra[0] if extra else [])]
    reported |= {metrics.STEPS: done} | ({metrics.RESYNC: True} if resync else {})
    return Trained(sent, reported, new[0] if new else None, num_examples, time.monotonic() - start)


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
    return personal(*read(instruction), memory, _tensor)


def personal(
    config: FitConfig,
    arrays: list[NDArray[Any]],
    memory: Memory | None,
    as_vector: Callable[[NDArray[Any]], Vector],
) -> list[NDArray[Any]]:
    """Return `personal_weights`, given the parts of the message; for `as_vector` see `train`."""
    weights, own = config.split(arrays)
    opened, _ = _open(memory, config, weights)
    trained, vector = _num_trained(config, weights), _flat(weights)
    rule = make_rule(config, as_vector(vector[:, :trained]), [], [own], [opened], as_vector)
    vector[0, :trained] = as_array(rule.personal())[0]
    return _split(vector[0], weights)


def read(instruction: FitIns | EvaluateIns) -> tuple[FitConfig, list[NDArray[Any]]]:
    """Return the task of a message, and its arrays; a ValueError says why the task is impossible."""
    return FitConfig.from_wire(instruction.config), parameters_to_ndarrays(instruction.parameters)


def _open(memory: Memory | None, config: FitConfig, weights: list[NDArray[Any]]) -> tuple[Memory, bool]:
    """Open the client's memory, if the rule keeps one and it is of this rule and model."""
    if config.last_accepted is not None:
        memory = usable_memory(memory, config.rule, _num_trained(config, weights), np.result_type(*weights))
    return open_memory(memory, config.last_accepted)


def _of_rows(oracle: Oracle) -> Oracle:
    """Return an oracle of one row, shape (1, M), given one of vectors, shape (M,)."""
    return lambda at: oracle(at[0])[None]


def _tensor(array: NDArray[Any]) -> Vector:
    """Return a PyTorch tensor; a client without PyTorch does not come here."""
    import torch

    return torch.from_numpy(array)


def _num_trained(config: FitConfig, weights: list[NDArray[Any]]) -> int:
    """Return how many numbers of the weights are trained: all but the buffers."""
    return sum(array.size for array in weights[: len(weights) - config.buffer_arrays])


def _flat(weights: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the weights as one row, in the type that all of them have together."""
    return np.concatenate([array.ravel() for array in weights])[None]


def _split(vector: NDArray[Any], weights: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Split a vector into arrays of the weights' shapes."""
    parts = np.split(vector, np.cumsum([array.size for array in weights])[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, weights, strict=True)]
