"""Local training of a cohort: clients whose steps are done in the same calls, or one client alone.

Clients of a cohort have the same rule and the same scalars, and may differ in everything else: number of
steps, batch sizes, rates, memory. Those that do most steps come first, so that those who still work are
always the first rows of every array.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.gradients.batches import Batch, BatchIndices, CohortBatches, DeviceData
from clients.gradients.flat import as_tensor
from clients.gradients.oracle import CohortOracle
from clients.memory.handshake import Memory
from clients.rules import SGD, rule_named
from clients.rules.base import Change, Oracle, Rate
from clients.training import Plan, fisher_rows
from flexfl.contract import metrics

_BLOCK = 1 << 24  # numbers of examples that are gathered for one step (64 MB)


class Update(NamedTuple):
    """What a client hands in besides its weights.

    Attributes
    ----------
    extra
        The method's own arrays.
    metrics
        See `flexfl.contract.metrics`.
    memory
        What the client remembers from now on; None where the method needs no memory at the client.
    """

    extra: list[NDArray[Any]]
    metrics: dict[str, int | float]
    memory: Memory | None


class Trained(NamedTuple):
    """What came of a cohort: the update of each client, and whether their weights are sent, too."""

    updates: list[Update]
    sends_weights: bool


def cohorts(plans: Sequence[Plan], limit: int, input_size: int, oracle: CohortOracle) -> list[list[Plan]]:
    """Divide clients into cohorts.

    Parameters
    ----------
    plans
        What the clients are going to do.
    limit
        Largest cohort; smaller ones are made where examples of one step would take too much memory.
    input_size
        How many numbers an input has.
    oracle
        Knows who can be in one cohort, and how much memory that takes.
    """
    kinds: dict[Hashable, list[Plan]] = {}
    for plan in plans:
        kinds.setdefault((oracle.cohort_key(plan.chosen), _kind(plan)), []).append(plan)
    found: list[list[Plan]] = []
    for group in kinds.values():
        group.sort(key=lambda plan: (-len(plan.chosen.lengths), plan.job.client))
        most = max(
            1, min(limit, _BLOCK // max(oracle.buffer_size(plan.chosen, input_size) for plan in group))
        )
        count = -(-len(group) // most)
        size = -(-len(group) // count)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def _kind(plan: Plan) -> Hashable:
    """Equal for clients that can be in one cohort."""
    shapes = tuple(array.shape for array in plan.job.arrays)
    return plan.job.config.common, tuple(plan.memory.committed), shapes


def train(
    oracle: CohortOracle,
    examples: DeviceData,
    weights: Tensor,
    shared: Sequence[Tensor],
    plans: Sequence[Plan],
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
        Global weights, shape (M,), on the device that trains.
    shared
        The method's arrays for all clients, each of shape (M,).
    plans
        What the clients are going to do, one of the lists that `cohorts` returns.
    seed
        Of the draws of examples for the Fisher information.
    out
        Gets the local weights after training, shape (K, M).
    """
    start, room = weights.expand(len(plans), -1), as_tensor(out)
    rule = begin(start, shared, plans, lambda at: _fisher(oracle, examples, at, plans, seed))
    fits = (room.device, room.dtype) == (start.device, start.dtype)
    # Single steps are done elsewhere: memory that was used a moment ago is in the cache.
    y = room.copy_(start) if fits and _at_once(rule, oracle, plans[0].chosen) else start.clone()
    batches = examples.batches([p.job.client for p in plans], [p.chosen for p in plans], y.dtype)
    rate = y.new_tensor([p.job.config.learning_rate for p in plans])[:, None]
    losses = run(rule, oracle, batches, y, rate)
    room.copy_(y)
    steps = y.new_tensor([len(plan.chosen.lengths) for plan in plans])[:, None]
    extra = [
        array.cpu().numpy() if isinstance(array, Tensor) else [row.cpu().numpy() for row in array]
        for array in rule.upload(y, steps, rate)
    ]
    states: list[dict[str, NDArray[Any]]] | None = None
    if plans[0].job.config.last_accepted is not None:
        new = {key: value.cpu().numpy() for key, value in rule.remember(y, steps, rate).items()}
        states = [{key: value[k].copy() for key, value in new.items()} for k in range(len(plans))]
    reported = losses.double().cpu().numpy().T
    updates = []
    for k, plan in enumerate(plans):
        memory = None if states is None else plan.memory.stage(plan.job.config.round, states[k])
        updates.append(Update([array[k] for array in extra], _metrics(plan, reported[k]), memory))
    return Trained(updates, rule.sends_weights)


def run(rule: SGD, oracle: CohortOracle, batches: CohortBatches, y: Tensor, rate: Tensor) -> Tensor:
    """Do all local steps, from and to weights `y`, shape (K, M); return the losses, shape (T, K).

    They are those of each step's first gradient, zero where a client does a step no more.
    """
    if _at_once(rule, oracle, batches.clients[0]):
        return oracle.run_fused(y, rate, batches)
    losses = y.new_zeros((len(batches.counts), len(y)))
    active, active_rate = y, rate
    for t, count in enumerate(batches.counts):
        if count < len(active):
            rule.narrow(count)
            active, active_rate = y[:count], rate[:count]
        step = _Step(oracle, batches.step(t))
        rule.step(active, step, active_rate)
        losses[t, :count] = step.losses
    rule.widen()
    return losses


def _at_once(rule: SGD, oracle: CohortOracle, chosen: BatchIndices) -> bool:
    return rule.plain() and oracle.fuses_steps(chosen)


def begin(weights: Tensor, shared: Sequence[Tensor], plans: Sequence[Plan], fisher: Oracle) -> SGD:
    """Make the rule of a cohort of global weights, shape (K, M), and what the clients got and remember."""
    jobs, device = [plan.job for plan in plans], weights.device
    own = [_stacked(arrays).to(device) for arrays in zip(*(job.arrays for job in jobs), strict=True)]
    committed = [plan.memory.committed for plan in plans]
    state = {key: _stacked([c[key] for c in committed]).to(device) for key in committed[0]}
    return rule_named(jobs[0].config.rule)(weights, [*shared, *own], jobs[0].config, state, fisher)


class _Step:
    """The gradients of one step, and the losses where the first of them were taken."""

    def __init__(self, oracle: CohortOracle, batch: Batch) -> None:
        self.oracle, self.batch = oracle, batch
        self._losses: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """Shape (A,); there after a step."""
        if self._losses is None:
            raise RuntimeError("the rule has done a step without a gradient")
        return self._losses

    def __call__(self, at: Tensor) -> Tensor:
        gradient, losses = self.oracle.gradient(at, self.batch)
        self._losses = losses if self._losses is None else self._losses
        return gradient

    def descend(self, y: Tensor, rate: Rate, besides: Change | None) -> None:
        losses = self.oracle.descend(y, rate, self.batch, besides)
        self._losses = losses if self._losses is None else self._losses


def _stacked(rows: Iterable[NDArray[Any]]) -> Tensor:
    """One array of shape (K, M) of the clients' arrays."""
    return torch.from_numpy(np.stack(list(rows)))


def _metrics(plan: Plan, losses: NDArray[np.float64]) -> dict[str, int | float]:
    steps = len(plan.chosen.lengths)
    told: dict[str, int | float] = {
        metrics.CLIENT_ID: plan.job.client,
        metrics.ROUND: plan.job.config.round,
        metrics.STEPS: steps,
        metrics.TRAIN_LOSS: float(losses[:steps].sum()) / steps,
        metrics.FINAL_LOSS: float(losses[steps - 1]),
    }
    if plan.resync and plan.job.config.last_accepted is not None:
        told[metrics.RESYNC] = True
    return told


def _fisher(
    oracle: CohortOracle, examples: DeviceData, at: Tensor, plans: Sequence[Plan], seed: int
) -> Tensor:
    """Diagonals of the clients' Fisher information, shape (K, M)."""
    chosen = ((plan.job.client, fisher_rows(plan, seed)) for plan in plans)
    return torch.stack([oracle.fisher(y, examples.examples(*c)) for y, c in zip(at, chosen, strict=True)])
