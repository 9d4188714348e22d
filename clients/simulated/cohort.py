"""Local training of a cohort: clients that do their steps in the same calls, or one client alone.

The clients of a cohort have the same rule and the same scalars; number of steps, batch sizes, learning rates
and memory may differ. The client with the most steps comes first, so that the clients that still train are
always the first rows of every array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.deadline import LocalDeadline
from clients.draws import BatchIndices, draw_fisher
from clients.gradients.batches import Batch, CohortBatches, DeviceData
from clients.gradients.flat import as_tensor
from clients.gradients.oracle import CohortOracle
from clients.memory.handshake import Memory
from clients.rules import SGD, rule_named
from clients.rules.base import Change, Oracle
from clients.rules.vectors import Rate, subtract
from clients.simulated.jobs import PreparedJob
from clients.simulated.updates import Updates
from flexfl.ground.contract import REPORTED, Reported

_BLOCK = 1 << 24  # numbers in the inputs that are gathered for one step (64 MB)


class Trained(NamedTuple):
    """What a cohort returns: the update of each client, and whether their weights are sent as well."""

    updates: Updates
    sends_weights: bool


def cohorts(
    jobs: Sequence[PreparedJob], limit: int, input_size: int, oracle: CohortOracle
) -> list[list[PreparedJob]]:
    """Divide clients into cohorts.

    Parameters
    ----------
    jobs
        The clients' jobs.
    limit
        Largest cohort; they are smaller where the examples of one step would take too much memory.
    input_size
        How many numbers an input has.
    oracle
        Says which clients can be in one cohort, and how much memory they need.
    """
    groups: dict[Hashable, list[PreparedJob]] = {}
    for job in jobs:
        groups.setdefault((oracle.cohort_key(job.batches), _cohort_key(job)), []).append(job)
    found: list[list[PreparedJob]] = []
    for group in groups.values():
        group.sort(key=lambda member: (-len(member.batches.lengths), member.job.client))
        most = max(1, min(limit, _BLOCK // oracle.buffer_size(group[0].batches, input_size)))
        count = -(-len(group) // most)
        size = -(-len(group) // count)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def _cohort_key(prepared: PreparedJob) -> Hashable:
    """Equal for clients whose rules allow them to be in one cohort."""
    shapes = tuple(array.shape for array in prepared.job.arrays)
    starts_alone = prepared.job.weights is not None
    return (
        prepared.job.config.common,
        tuple(prepared.memory.committed),
        shapes,
        starts_alone,
        prepared.job.until,
    )


def train(
    oracle: CohortOracle,
    examples: DeviceData,
    weights: Tensor,
    shared: Sequence[Tensor],
    cohort: Sequence[PreparedJob],
    seed: int,
    out: NDArray[Any],
) -> Trained:
    """Train a cohort.

    Parameters
    ----------
    oracle
        Computes gradients.
    examples
        The clients' data.
    weights
        Weights and buffers to start from, in one vector, on the device that trains; clients may have their
        own.
    shared
        The method's arrays that are the same for all clients, each of shape (M,).
    cohort
        One of the lists that `cohorts` returns.
    seed
        Determines the examples for the Fisher information.
    out
        Receives the local weights and buffers after training, a row for each client.
    """
    start, target, trained = _start(weights, cohort), as_tensor(out), oracle.model.num_trainable
    rule = make_rule(
        start[:, :trained],
        shared,
        cohort,
        lambda at: _fisher(oracle, examples, _whole(at, y), cohort, seed)[:, :trained],
    )
    in_place = (target.device, target.dtype) == (start.device, start.dtype)
    until, stop = cohort[0].job.until, cohort[0].job.stop
    fused = until is None and _fused(rule, oracle, cohort[0].batches)
    # Single steps are done in new memory, which is in the cache as it has just been written.
    y = target.copy_(start) if in_place and fused else start.clone()
    batches = examples.batches([p.job.client for p in cohort], [p.batches for p in cohort], y.dtype)
    rate = y.new_tensor([p.job.config.learning_rate for p in cohort])[:, None]
    losses = run(rule, oracle, batches, y, rate, until, stop)
    target.copy_(y)
    weights_after = y[:, :trained]
    done = np.array([min(len(p.batches.lengths), len(losses)) for p in cohort])
    steps = y.new_tensor(done)[:, None]
    sent = [
        array.cpu().numpy() if isinstance(array, Tensor) else [row.cpu().numpy() for row in array]
        for array in rule.upload(weights_after, steps, rate)
    ]
    server_round, memories = cohort[0].job.config.round, list[Memory]()
    if cohort[0].job.config.last_accepted is not None:
        new = {key: value.cpu().numpy() for key, value in rule.remember(weights_after, steps, rate).items()}
        states = ({key: value[k].copy() for key, value in new.items()} for k in range(len(cohort)))
        memories = [p.memory.stage(server_round, state) for p, state in zip(cohort, states, strict=True)]
    norms = _update_norms(weights_after, start[:, :trained]) if rule.sends_weights else math.nan
    reported = _reported(cohort, losses.double().cpu().numpy(), done, norms)
    extra = [[array[k] for array in sent] for k in range(len(cohort))] if sent else ()
    return Trained(Updates(server_round, reported, extra, memories), rule.sends_weights)


def _start(weights: Tensor, cohort: Sequence[PreparedJob]) -> Tensor:
    """Return what each client starts from, in K rows."""
    own = [prepared.job.weights for prepared in cohort if prepared.job.weights is not None]
    return _stacked(own).to(weights) if own else weights.expand(len(cohort), -1)


def run(
    rule: SGD,
    oracle: CohortOracle,
    batches: CohortBatches,
    y: Tensor,
    rate: Tensor,
    until: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Do all local steps on weights and buffers `y`, in K rows, in place; return the losses, shape (T, K).

    These are the losses at each step's first gradient, zero after a client's last step. With `until`
    and `stop`, see `LocalDeadline`, T is the number of steps that were done.
    """
    if until is None and _fused(rule, oracle, batches.clients[0]):
        return oracle.run_fused(y, rule.weights, rate, batches, rule.correction())
    losses = y.new_zeros((len(batches.counts), len(y)))
    trained = oracle.model.num_trainable
    active, active_rate, deadline = y, rate, LocalDeadline(until, stop)
    for t, count in enumerate(batches.counts):
        if t and not deadline.allows_another(t):
            losses = losses[:t]
            break
        if count < len(active):
            rule.narrow(count)
            active, active_rate = y[:count], rate[:count]
        if trained == y.shape[1]:
            step = _Step(oracle, batches.step(t))
            rule.step(active, step, active_rate)
        else:
            step = _StepWithBuffers(oracle, batches.step(t), active)
            rule.step(active[:, :trained], step, active_rate)
        losses[t, :count] = step.losses
    rule.widen()
    return losses


def _fused(rule: SGD, oracle: CohortOracle, batches: BatchIndices) -> bool:
    """Whether all steps are done in one call."""
    return rule.steps_are_corrected() and oracle.fuses_steps(batches, not rule.correction().is_zero)


def make_rule(
    weights: Tensor, shared: Sequence[Tensor], cohort: Sequence[PreparedJob], fisher: Oracle
) -> SGD:
    """Make the rule of a cohort from the global weights, shape (K, M), and the clients' arrays and states."""
    jobs, device = [prepared.job for prepared in cohort], weights.device
    own = [_stacked(arrays).to(device) for arrays in zip(*(job.arrays for job in jobs), strict=True)]
    committed = [prepared.memory.committed for prepared in cohort]
    state = {key: _stacked([c[key] for c in committed]).to(device) for key in committed[0]}
    return rule_named(jobs[0].config.rule)(weights, [*shared, *own], jobs[0].config, state, fisher)


class _Step:
    """The gradient oracle of one local step, which notes the losses at its first gradient."""

    def __init__(self, oracle: CohortOracle, batch: Batch) -> None:
        self.oracle, self.batch = oracle, batch
        self._losses: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """Shape (A,), after the step."""
        if self._losses is None:
            raise RuntimeError("the rule has done a step without a gradient")
        return self._losses

    def __call__(self, at: Tensor) -> Tensor:
        gradient, losses = self.oracle.gradient(at, self.batch)
        self._losses = losses if self._losses is None else self._losses
        return gradient

    def descend(self, y: Tensor, rate: Rate, change: Change | None) -> None:
        losses = self.oracle.descend(y, rate, self.batch, change)
        self._losses = losses if self._losses is None else self._losses


class _StepWithBuffers(_Step):
    """The same for a model with buffers, which the rule does not see.

    A client has its buffers once, also where a rule computes gradients at several models: each notes there
    what it has seen.

    Parameters
    ----------
    oracle, batch
        See `_Step`.
    y
        Weights and buffers of the clients, in rows; the buffers are changed.
    """

    def __init__(self, oracle: CohortOracle, batch: Batch, y: Tensor) -> None:
        super().__init__(oracle, batch)
        self.y, self.trained = y, oracle.model.num_trainable

    def __call__(self, at: Tensor) -> Tensor:
        whole = _whole(at, self.y)
        gradient = super().__call__(whole)
        self.y[:, self.trained :] = whole[:, self.trained :]
        return gradient[:, : self.trained]

    def descend(self, y: Tensor, rate: Rate, change: Change | None) -> None:
        gradient = self(y)
        if change is not None:
            change(y)
        subtract(y, gradient, rate)


def _whole(weights: Tensor, y: Tensor) -> Tensor:
    """Return weights in rows, each followed by what comes after as many numbers in the row of `y`."""
    trained = weights.shape[1]
    return weights if trained == y.shape[1] else torch.cat([weights, y[: len(weights), trained:]], dim=1)


def _stacked(rows: Iterable[NDArray[Any]]) -> Tensor:
    """Stack one array per client, shape (K, ...)."""
    return torch.from_numpy(np.stack(list(rows)))


def _update_norms(after: Tensor, before: Tensor) -> NDArray[Any]:
    """Return the norms of the clients' updates, shape (K,); infinite where single precision overflows."""
    norms: NDArray[Any] = torch.linalg.vector_norm(after - before, dim=1).cpu().numpy()
    return norms


def _reported(
    cohort: Sequence[PreparedJob],
    losses: NDArray[np.float64],
    done: NDArray[np.intp],
    norms: NDArray[Any] | float,
) -> Reported:
    """Return what the clients report, given the losses of their steps, (T, K), and how many they did."""
    reported = np.empty(len(cohort), REPORTED)
    reported["client"] = [p.job.client for p in cohort]
    reported["num_examples"] = [p.num_examples for p in cohort]
    reported["steps"] = done
    reported["train_loss"] = losses.sum(axis=0) / done
    reported["final_loss"] = losses[done - 1, np.arange(len(cohort))]
    reported["update_norm"] = norms
    reported["resync"] = [p.resync for p in cohort]
    return reported


def _fisher(
    oracle: CohortOracle, examples: DeviceData, at: Tensor, cohort: Sequence[PreparedJob], seed: int
) -> Tensor:
    """Diagonals of the clients' Fisher information, shape (K, M)."""
    rows = ((p.job.client, draw_fisher(p.num_examples, p.job.config, p.job.client, seed)) for p in cohort)
    return torch.stack([oracle.fisher(y, examples.examples(*r)) for y, r in zip(at, rows, strict=True)])
