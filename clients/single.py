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
from fedtide.base.contract import FitConfig, metrics


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
    asked = Asked.of(instruction, memory)
    done = train(asked, repeat(gradient), num_examples, _tensor, steps, fisher)
    if asked.until is not None and not asked.config.farewell:
        done.reported[metrics.SECONDS] = time.monotonic() - start
    reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(done.arrays), num_examples, done.reported)
    return reply, done.memory


class Asked(NamedTuple):
    """What a client is asked to do, read from a message."""

    config: FitConfig
    weights: list[NDArray[Any]]  # one array per tensor: those that are trained, then buffers
    own: list[NDArray[Any]]  # the method's
    memory: Memory | None  # what the client has stored
    until: float | None  # the deadline, on the clock of `time.monotonic`

    @classmethod
    def of(cls, instruction: FitIns | EvaluateIns, memory: Memory | None = None) -> Asked:
        """Read a message that has just come; a ValueError says why its task is impossible."""
        config = FitConfig.from_wire(instruction.config)
        weights, own = config.split(parameters_to_ndarrays(instruction.parameters))
        limit = config.deadline_seconds
        return cls(config, weights, own, memory, None if limit is None else time.monotonic() + limit)

    @property
    def vector(self) -> NDArray[Any]:
        """The weights as one vector, in the type that all of them have together."""
        return np.concatenate([array.ravel() for array in self.weights])

    @property
    def num_trained(self) -> int:
        """How many numbers of the vector are trained: all but the buffers."""
        return sum(array.size for array in self.weights[: len(self.weights) - self.config.buffer_arrays])

    def split(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Split a vector into arrays of the weights' shapes."""
        parts = np.split(vector, np.cumsum([array.size for array in self.weights])[:-1])
        return [part.reshape(array.shape) for part, array in zip(parts, self.weights, strict=True)]

    def open_memory(self) -> tuple[Memory, bool]:
        """See the function `open_memory`; a memory of another rule or model counts as none."""
        memory, config = self.memory, self.config
        if config.last_accepted is not None:
            memory = usable_memory(memory, config.rule, self.num_trained, np.result_type(*self.weights))
        return open_memory(memory, config.last_accepted)


class Trained(NamedTuple):
    """A client's part of a round."""

    arrays: list[NDArray[Any]]  # to send
    reported: dict[str, Any]  # the metrics of the reply, see `fedtide.base.contract.metrics`
    memory: Memory | None  # see `fit`
    num_examples: int
    seconds: float = 0.0  # that the local steps took
    lost: bool = False  # whether the trace that the client replays loses the reply


def train(
    asked: Asked,
    gradients: Iterable[Oracle],
    num_examples: int,
    as_vector: Callable[[NDArray[Any]], Vector],
    steps: int | None = None,
    fisher: Oracle = no_fisher,
    stop: Callable[[], bool] | None = None,
) -> Trained:
    """Do one client's part of a round, as `fit`, with the gradient of each step.

    The rule and the gradients work on what `as_vector` makes of an array: `numpy.asarray` or
    `torch.from_numpy`. For `stop` see `LocalDeadline`.
    """
    start, config = time.monotonic(), asked.config
    opened, resync = asked.open_memory()
    reported: dict[str, Any] = {metrics.ROUND: config.round, metrics.RULE: config.rule}
    if config.farewell:
        return Trained(list(opened.committed.values()), reported, asked.memory, num_examples)
    planned = config.planned_steps(num_examples)
    wanted = planned if steps is None else min(steps, planned)
    if wanted < 1:
        raise ValueError(f"{wanted} local steps; a client that does none has no reply to send")
    at_start = as_vector(asked.vector[None])
    y, rate = copy_of(at_start), config.learning_rate
    rule = make_rule(
        config,
        at_start[:, : asked.num_trained],
        [],
        [asked.own],
        [opened],
        as_vector,
        lambda at: of_weights(rule, _of_rows(fisher), y)(at),
    )
    oracles = ((1, _of_rows(gradient)) for _, gradient in zip(range(wanted), gradients, strict=False))
    done = do_steps(rule, y, oracles, rate, LocalDeadline(asked.until, stop))
    extra, new = finish(rule, y, done, rate, [opened], [config.round])
    local = asked.split(as_array(y)[0])
    first = 0 if rule.sends_weights else len(local) - config.buffer_arrays
    reported |= {metrics.STEPS: done} | ({metrics.RESYNC: True} if resync else {})
    sent, memory = [*local[first:], *(extra[0] if extra else [])], new[0] if new else None
    return Trained(sent, reported, memory, num_examples, time.monotonic() - start)


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
    return personal(Asked.of(instruction, memory), _tensor)


def personal(asked: Asked, as_vector: Callable[[NDArray[Any]], Vector]) -> list[NDArray[Any]]:
    """Return `personal_weights`; for `as_vector` see `train`."""
    opened, _ = asked.open_memory()
    vector, trained = asked.vector[None], asked.num_trained
    rule = make_rule(asked.config, as_vector(vector[:, :trained]), [], [asked.own], [opened], as_vector)
    vector[0, :trained] = as_array(rule.personal())[0]
    return asked.split(vector[0])


def _of_rows(oracle: Oracle) -> Oracle:
    """Return an oracle of one row, shape (1, M), given one of vectors, shape (M,)."""
    return lambda at: oracle(at[0])[None]


def _tensor(array: NDArray[Any]) -> Vector:
    import torch  # a client without PyTorch does not come here

    return torch.from_numpy(array)
