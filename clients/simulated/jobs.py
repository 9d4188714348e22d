"""What a client is asked to do, what it prepares for it, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from clients.draws import BatchIndices, client_rng, draw_batches
from clients.memory.handshake import Memory, open_memory
from clients.rules import rule_named
from flexfl.ground.contract import FitConfig
from flexfl.tasks import FederatedData


class DroppedError(Exception):
    """The client went offline mid-round, before it finished a step."""


class Broadcast(NamedTuple):
    """What all clients of a round receive.

    Attributes
    ----------
    weights
        The global weights, shape (M,).
    shared
        The method's arrays that are the same for all clients, each of shape (M,).
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
        Share of the planned steps for which it is available.
    memory
        Its memory, or where that is stored, see `VirtualClients.load`; None: it has none yet.
    weights
        Its own weights to start from, shape (M,); None: those that all clients receive.
    until
        When it has to be done, on the clock of `time.monotonic`; None: it does all that it can.
    stop
        Whether it has to be done now; asked after each step if there is an `until`. None: no.
    """

    client: int
    arrays: Sequence[NDArray[Any]]
    config: FitConfig
    completion: float
    memory: Any = None
    weights: NDArray[Any] | None = None
    until: float | None = None
    stop: Callable[[], bool] | None = None


class PreparedJob(NamedTuple):
    """A job that is ready to run: its batches are drawn and its memory is open.

    Attributes
    ----------
    job
        What the client was asked to do.
    batches
        The examples of each step that it does.
    num_examples
        n_k.
    memory, resync
        What `open_memory` returned.
    """

    job: Job
    batches: BatchIndices
    num_examples: int
    memory: Memory
    resync: bool


def prepare(
    job: Job, steps: int, memory: Memory | None, data: FederatedData, seed: int, draws: bool = False
) -> PreparedJob:
    """Draw the batches of a client and open its memory.

    Parameters
    ----------
    job
        What the client is asked to do.
    steps
        The local steps for which it is available.
    memory
        Its memory; None: it has none yet.
    data
        The data of all clients.
    seed
        Determines the batches, together with the client and the round.
    draws
        Whether the model draws random numbers in training, as for dropout.

    Raises
    ------
    DroppedError
        It is not available for a single step.
    ValueError
        The client has no examples, or the rule is unknown.
    """
    client, config = job.client, job.config
    rule_named(config.rule)
    num_examples = int(data.sizes[client])
    if not num_examples:
        raise ValueError("the client has no examples")
    if not steps:
        raise DroppedError("dropped in mid-round")
    rng = client_rng(seed, b"batches", client, config.round)
    batches = draw_batches(num_examples, config.batch_size, steps, rng)
    if (augmentation := getattr(data, "augmentation", None)) is not None:
        rng = client_rng(seed, b"augmentation", client, config.round)
        batches = batches._replace(changes=augmentation.draw(len(batches.indices), rng))
    if draws:
        rng = client_rng(seed, b"dropout", client, config.round)
        batches = batches._replace(seeds=rng.integers(2**63, size=steps))
    return PreparedJob(job, batches, num_examples, *open_memory(memory, config.last_accepted))
