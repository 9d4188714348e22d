"""What a client is asked to do, and what it prepares for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from clients.draws import BatchIndices, client_rng, draw_batches
from clients.memory.handshake import Memory, open_memory
from clients.rules import rule_named
from fedtide.base.contract import FitConfig
from fedtide.tasks import FederatedData


class Broadcast(NamedTuple):
    """What all clients of a round receive: weights, and the method's arrays that all have in common, (M,)."""

    weights: NDArray[Any]
    shared: tuple[NDArray[Any], ...] = ()


class Job(NamedTuple):
    """What one client is asked to do; `until` and `stop` are those of `clients.training.LocalDeadline`."""

    client: int
    arrays: Sequence[NDArray[Any]]  # the method's for this client, after the shared ones
    config: FitConfig
    completion: float  # share of the planned steps for which it is available
    memory: Any = None  # or where that is stored, see `VirtualClients.load`; None: it has none yet
    weights: NDArray[Any] | None = None  # its own to start from, (M,); None: those that all clients receive
    until: float | None = None
    stop: Callable[[], bool] | None = None


class PreparedJob(NamedTuple):
    """A job that is ready to run: its batches are drawn and its memory is open, see `open_memory`."""

    job: Job
    batches: BatchIndices
    num_examples: int
    memory: Memory
    resync: bool


def prepare(
    job: Job, steps: int, memory: Memory | None, data: FederatedData, seed: int, draws: bool = False
) -> PreparedJob:
    """Draw the batches of a client for the steps that it is available for, and open its memory.

    `draws` says whether the model draws random numbers in training, as for dropout. A client without
    examples, or of an unknown rule, is a ValueError.
    """
    client, config = job.client, job.config
    rule_named(config.rule)
    num_examples = int(data.sizes[client])
    if not num_examples:
        raise ValueError("the client has no examples")
    rng = client_rng(seed, b"batches", client, config.round)
    batches = draw_batches(num_examples, config.batch_size, steps, rng)
    if (augmentation := getattr(data, "augmentation", None)) is not None:
        rng = client_rng(seed, b"augmentation", client, config.round)
        batches = batches._replace(changes=augmentation.draw(len(batches.indices), rng))
    if draws:
        rng = client_rng(seed, b"dropout", client, config.round)
        batches = batches._replace(seeds=rng.integers(2**63, size=steps))
    return PreparedJob(job, batches, num_examples, *open_memory(memory, config.last_accepted))
