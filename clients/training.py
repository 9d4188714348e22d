"""What a client is asked to do, and what it is going to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.gradients.batches import BatchIndices, Indices, draw_batches
from clients.memory.handshake import Memory
from clients.rules import rule_named
from flexfl.contract import FitConfig
from flexfl.tasks import FederatedData


class DroppedError(Exception):
    """The client went offline in mid-round, before it finished a step."""


class Broadcast(NamedTuple):
    """What all clients of a round get.

    Attributes
    ----------
    weights
        The global weights, shape (M,).
    shared
        The method's arrays that are the same for all, each of shape (M,).
    """

    weights: NDArray[Any]
    shared: tuple[NDArray[Any], ...] = ()


class Job(NamedTuple):
    """What one client is asked to do.

    Attributes
    ----------
    client
        Its index.
    arrays
        The method's arrays for this client, after the shared ones.
    config
        Its task.
    completion
        Share of the planned steps that its availability lets it finish.
    memory
        What it remembers, or where that is, see `VirtualClients.load`; None: nothing yet.
    """

    client: int
    arrays: Sequence[NDArray[Any]]
    config: FitConfig
    completion: float
    memory: Any = None


class Plan(NamedTuple):
    """What one client is going to do.

    Attributes
    ----------
    job
        What it was asked to do.
    chosen
        Positions among its examples, for the steps that it does.
    num_examples
        n_k.
    memory, resync
        What `Memory.open` returned.
    """

    job: Job
    chosen: BatchIndices
    num_examples: int
    memory: Memory
    resync: bool


def plan(job: Job, steps: int, memory: Memory | None, data: FederatedData, seed: int) -> Plan:
    """Draw the batches of a client and open its memory.

    Parameters
    ----------
    job
        What the client is asked to do.
    steps
        How much of it its availability lets it finish.
    memory
        What it remembers; None: nothing yet.
    data
        The data of all clients.
    seed
        With client and round it determines the batches.

    Raises
    ------
    DroppedError
        No step gets finished.
    ValueError
        The client has no examples, or does not have the rule.
    """
    client, config = job.client, job.config
    rule_named(config.rule)
    num_examples = int(data.sizes[client])
    if not num_examples:
        raise ValueError("the client has no examples")
    if not steps:
        raise DroppedError("dropped in mid-round")
    rng = draws(seed, b"batches", client, config.round)
    chosen = draw_batches(num_examples, config.batch_size, steps, rng)
    return Plan(job, chosen, num_examples, *open_memory(job, memory))


def open_memory(job: Job, memory: Memory | None) -> tuple[Memory, bool]:
    """Settle what became of the client's last reply; see `Memory.open`."""
    return (memory or Memory()).open(job.config.last_accepted or 0)


def draws(seed: int, purpose: bytes, client: int, server_round: int) -> np.random.Generator:
    """Return the random numbers of one client in one round.

    A counter-based generator, whose counter starts at client and round, is made four times as fast as one
    that hashes a seed; there is one for each client and round.
    """
    return np.random.Generator(
        np.random.Philox(key=_key(seed, purpose), counter=[0, 0, client, server_round])
    )


@lru_cache(maxsize=8)
def _key(seed: int, purpose: bytes) -> NDArray[Any]:
    return np.random.SeedSequence([seed, *purpose]).generate_state(2, np.uint64)


def fisher_rows(plan: Plan, seed: int) -> Indices:
    """Draw `fisher-batches` batches of different examples; with 0, or if there are not more, take all."""
    client, config = plan.job.client, plan.job.config
    wanted = int(config.own["fisher-batches"]) * config.batch_size or plan.num_examples
    rng = draws(seed, b"fisher", client, config.round)
    return rng.permutation(plan.num_examples)[:wanted]
