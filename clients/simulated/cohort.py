"""Local training of a cohort: clients that do their steps in the same calls, or one client alone.

The clients of a cohort have the same rule and the same scalars; their rounds, numbers of steps, batch sizes,
learning rates and memories may differ. The client with the most steps comes first, see `clients.training`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.draws import BatchIndices, draw_fisher
from clients.gradients.batches import Batch, CohortBatches, DeviceData
from clients.gradients.flat import as_tensor
from clients.gradients.oracle import CohortOracle, update_norms
from clients.memory.handshake import Memory
from clients.rules import SGD
from clients.rules.base import Change, DescendingOracle, no_fisher
from clients.rules.vectors import Rate, Vector
from clients.simulated.jobs import PreparedJob
from clients.training import LocalDeadline, do_steps, finish, make_rule, of_weights, weights_of
from fedtide.base.contract import REPORTED, Reported

_BLOCK = 1 << 24  # numbers in the inputs that are gathered for one step (64 MB)


class TrainedCohort(NamedTuple):
    """What the clients of a cohort return besides their vectors, K rows.

    `extra` is empty where clients send no arrays of the method, `memories` where all are unchanged.
    """

    reported: Reported
    extra: Sequence[Sequence[NDArray[Any]]]
    memories: Sequence[Memory]
    sends_weights: bool


def cohorts(jobs: Sequence[PreparedJob], limit: int, input_size: int) -> list[list[PreparedJob]]:
    """Divide clients into cohorts of up to `limit`; fewer where the examples of a step take much memory."""
    groups: dict[Hashable, list[PreparedJob]] = {}
    for job in jobs:
        groups.setdefault(_cohort_key(job), []).append(job)
    divided: list[list[PreparedJob]] = []
    for group in groups.values():
        group.sort(key=lambda member: (-len(member.batches.lengths), member.job.client))
        most = max(1, min(limit, _BLOCK // (group[0].batches.padded_length * input_size)))
        count = -(-len(group) // most)
        size = -(-len(group) // count)
        divided += [group[start : start + size] for start in range(0, len(group), size)]
    return divided


def _cohort_key(prepared: PreparedJob) -> Hashable:
    """Equal for clients that may be in one cohort."""
    job, length = prepared.job, prepared.batches.padded_length
    shapes, starts_alone = tuple(array.shape for array in job.arrays), job.weights is not None
    return length, job.config.common, tuple(prepared.memory.committed), shapes, starts_alone, job.until


def train(
    oracle: CohortOracle,
    examples: DeviceData,
    weights: Tensor,
    shared: Sequence[Tensor],
    cohort: Sequence[PreparedJob],
    seed: int,
    out: NDArray[Any],
) -> TrainedCohort:
    """Train a cohort that `cohorts` has made.

    `weights` has the weights and buffers to start from, on the device that trains; clients may have their
    own. `out` receives them after training, a row for each client. The seed determines the examples for the
    Fisher information.
    """
    start, target, jobs = _start(weights, cohort), as_tensor(out), [prepared.job for prepared in cohort]

    def fisher(at: Vector) -> Vector:
        return of_weights(rule, lambda whole: _fisher(oracle, examples, whole, cohort, seed), y)(at)

    memories = [prepared.memory for prepared in cohort]
    arrays, config, until = [job.arrays for job in jobs], jobs[0].config, jobs[0].until
    at_start = start[:, : oracle.model.num_trainable]
    rule = make_rule(config, at_start, shared, arrays, memories, on(weights.device), fisher)
    in_place = (target.device, target.dtype) == (start.device, start.dtype)
    fused = until is None and _fused(rule, oracle, cohort[0].batches)
    # Single steps are done in new memory, which is in the cache as it has just been written.
    y = target if in_place and fused else start.clone()
    batches = examples.batches([job.client for job in jobs], [p.batches for p in cohort], y.dtype)
    rate = y.new_tensor([job.config.learning_rate for job in jobs])[:, None]
    losses, norms = run(rule, oracle, batches, y, rate, until, jobs[0].stop)
    target.copy_(y)
    done = np.array([min(len(p.batches.lengths), len(losses)) for p in cohort])
    rounds = [job.config.round for job in jobs]
    extra, new = finish(rule, y, y.new_tensor(done)[:, None], rate, memories, rounds)
    rule.fisher = no_fisher  # or rule and function would keep each other, and `y`, for the garbage collector
    reported = _reported(
        cohort, losses.double().cpu().numpy(), done, norms if rule.sends_weights else math.nan
    )
    return TrainedCohort(reported, extra, new, rule.sends_weights)


def on(device: torch.device) -> Callable[[NDArray[Any]], Tensor]:
    """Return a function that makes tensors on a device of arrays."""
    return lambda array: torch.from_numpy(array).to(device)


def _start(weights: Tensor, cohort: Sequence[PreparedJob]) -> Tensor:
    """Return the weights that each client starts from, in K rows."""
    own = [prepared.job.weights for prepared in cohort if prepared.job.weights is not None]
    return torch.from_numpy(np.stack(own)).to(weights) if own else weights.expand(len(cohort), -1)


def run(
    rule: SGD,
    oracle: CohortOracle,
    batches: CohortBatches,
    y: Tensor,
    rate: Tensor,
    until: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[Tensor, NDArray[np.float64]]:
    """Do all local steps on weights and buffers `y`, in K rows, in place; return losses and norms of updates.

    The losses, (T, K), are those at each step's first gradient, zero after a client's last step; the norms
    have shape (K,). With `until` and `stop`, see `LocalDeadline`, T is the number of steps that were done.
    """
    oracle.model.reset()
    if until is None and _fused(rule, oracle, batches.clients[0]):
        return oracle.run_fused(y, cast(Tensor, rule.weights), rate, batches, rule.correction())
    losses = y.new_zeros((len(batches.counts), len(y)))
    steps = (
        (count, _Step(oracle, batches.step(t), losses[t, :count])) for t, count in enumerate(batches.counts)
    )
    done = do_steps(rule, y, steps, rate, LocalDeadline(until, stop))
    return losses[:done], update_norms(cast(Tensor, weights_of(rule, y)), cast(Tensor, rule.weights))


def _fused(rule: SGD, oracle: CohortOracle, batches: BatchIndices) -> bool:
    return rule.steps_are_corrected() and oracle.fuses_steps(batches, not rule.correction().is_zero)


class _Step(DescendingOracle):
    """The gradient oracle of one local step, whose first gradient writes its losses to `losses`, (A,)."""

    def __init__(self, oracle: CohortOracle, batch: Batch, losses: Tensor) -> None:
        self.oracle, self.batch = oracle, batch
        self.losses: Tensor | None = losses

    def __call__(self, at: Vector) -> Vector:
        gradient, losses = self.oracle.gradient(cast(Tensor, at), self.batch)
        self._note(losses)
        return gradient

    def descend(self, y: Vector, rate: Rate, change: Change | None) -> None:
        self._note(self.oracle.descend(cast(Tensor, y), cast(Tensor, rate), self.batch, change))

    def _note(self, losses: Tensor) -> None:
        if self.losses is not None:
            self.losses.copy_(losses)
            self.losses = None


def _reported(
    cohort: Sequence[PreparedJob],
    losses: NDArray[np.float64],
    done: NDArray[np.intp],
    norms: NDArray[Any] | float,
) -> Reported:
    """Return the clients' reports, given the losses of their steps, (T, K), and the numbers of steps done."""
    reported = np.empty(len(cohort), REPORTED)
    reported["client"] = [p.job.client for p in cohort]
    reported["round"] = [p.job.config.round for p in cohort]
    reported["num_examples"] = [p.num_examples for p in cohort]
    reported["steps"] = done
    reported["train_loss"] = losses.sum(axis=0) / done
    reported["final_loss"] = losses[done - 1, np.arange(len(cohort))]
    reported["rms_loss"] = np.sqrt((losses**2).sum(axis=0) / done)
    reported["seconds"] = np.nan
    reported["update_norm"] = norms
    reported["resync"] = [p.resync for p in cohort]
    return reported


def _fisher(
    oracle: CohortOracle, examples: DeviceData, at: Vector, cohort: Sequence[PreparedJob], seed: int
) -> Tensor:
    """Diagonals of the clients' Fisher information, shape (K, M)."""
    rows = ((p.job.client, draw_fisher(p.num_examples, p.job.config, p.job.client, seed)) for p in cohort)
    weights = cast(Tensor, at)
    return torch.stack([oracle.fisher(y, examples.examples(*r)) for y, r in zip(weights, rows, strict=True)])
