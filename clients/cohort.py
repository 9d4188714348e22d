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
from clients.rules import SGD
from clients.rules.sgd import Change, Rate
from clients.training import Plan, fisher_rows, rule_of

OWN = ("learning-rate", "last-accepted")  # scalars that may differ between the clients of a cohort
_BLOCK = 1 << 24  # numbers of examples that are gathered for one step (64 MB)


class Update(NamedTuple):
    """What a client hands in besides its weights.

    Attributes
    ----------
    extra
        The method's own arrays.
    metrics
        Scalars: `client-id`, `round`, `steps`, `train-loss` (mean over the steps), `final-loss` (last step).
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
    scalars = tuple((key, value) for key, value in plan.job.config.items() if key not in OWN)
    return scalars, tuple(plan.memory.committed), tuple(a.shape for a in plan.job.arrays)


def train(
    oracle: CohortOracle,
    examples: DeviceData,
    weights: Tensor,
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
    plans
        What the clients are going to do, one of the lists that `cohorts` returns.
    seed
        Of the draws of examples for the Fisher information.
    out
        Gets the local weights after training, shape (K, M).
    """
    start, room = weights.expand(len(plans), -1), as_tensor(out)
    rule = begin(start, plans)
    fits = (room.device, room.dtype) == (start.device, start.dtype)
    # Single steps are done elsewhere: memory that was used a moment ago is in the cache.
    y = room.copy_(start) if fits and _at_once(rule, oracle, plans[0].chosen) else start.clone()
    if rule.needs_fisher:
        rule.fisher = lambda at: _fisher(oracle, examples, at, plans, seed)
    batches = examples.batches([p.job.client for p in plans], [p.chosen for p in plans], y.dtype)
    rate = y.new_tensor([float(p.job.config["learning-rate"]) for p in plans])[:, None]
    losses = run(rule, oracle, batches, y, rate)
    room.copy_(y)
    steps = y.new_tensor([len(plan.chosen.lengths) for plan in plans])[:, None]
    extra = [
        array.cpu().numpy() if isinstance(array, Tensor) else [row.cpu().numpy() for row in array]
        for array in rule.upload(y, steps, rate)
    ]
    states: list[dict[str, NDArray[Any]]] | None = None
    if "last-accepted" in plans[0].job.config:
        new = {key: value.cpu().numpy() for key, value in rule.remember(y, steps, rate).items()}
        states = [{key: value[k].copy() for key, value in new.items()} for k in range(len(plans))]
    reported = losses.double().cpu().numpy().T
    updates = []
    for k, plan in enumerate(plans):
        memory, metrics = None, _metrics(plan, reported[k])
        if states is not None:
            memory = plan.memory.stage(int(plan.job.config["round"]), states[k])
            metrics |= {"resync": True} if plan.resync else {}
        updates.append(Update([array[k] for array in extra], metrics, memory))
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


def begin(weights: Tensor, plans: Sequence[Plan]) -> SGD:
    """Make the rule of a cohort of global weights, shape (K, M), and what the clients got and remember."""
    jobs, device = [plan.job for plan in plans], weights.device
    arrays = [_stacked(own).to(device) for own in zip(*(job.arrays for job in jobs), strict=True)]
    committed = [plan.memory.committed for plan in plans]
    state = {key: _stacked([c[key] for c in committed], copy=True).to(device) for key in committed[0]}
    return rule_of(jobs[0].config)(weights, arrays, jobs[0].config, state)


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


def _stacked(arrays: Iterable[NDArray[Any]], copy: bool = False) -> Tensor:
    """One array for all clients, shape (M,), if it is the same object; else shape (K, M)."""
    rows = list(arrays)
    if not copy and len(rows) > 1 and all(row is rows[0] for row in rows):
        return as_tensor(rows[0])
    return torch.from_numpy(np.stack(rows))


def _metrics(plan: Plan, losses: NDArray[np.float64]) -> dict[str, int | float]:
    steps = len(plan.chosen.lengths)
    return {
        "client-id": plan.job.client,
        "round": int(plan.job.config["round"]),
        "steps": steps,
        "train-loss": float(losses[:steps].sum()) / steps,
        "final-loss": float(losses[steps - 1]),
    }


def _fisher(
    oracle: CohortOracle, examples: DeviceData, at: Tensor, plans: Sequence[Plan], seed: int
) -> Tensor:
    """Diagonals of the clients' Fisher information, shape (K, M)."""
    chosen = ((plan.job.client, fisher_rows(plan, seed)) for plan in plans)
    return torch.stack([oracle.fisher(y, examples.examples(*c)) for y, c in zip(at, chosen, strict=True)])
