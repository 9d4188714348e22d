"""How much each client's updates count under a method and a trace: the bias of partial participation.

Client k gets the linear loss -<e_k, w> in a model with one weight for each client, so that its gradient is
-e_k wherever it is. All rounds are then played with the real strategy and the real local steps. What weight k
has become is the sum of all that the method has applied of client k's updates, stale, corrected and echoed
ones included. Of many clients, groups can share a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import strategies
from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.oracle import CohortOracle, update_norms
from clients.rules.base import Correction
from clients.simulated.virtual import ClientEnvironment
from fedtide.base import dotted
from fedtide.base.contract import FitConfig
from fedtide.base.errors import SettingsError
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.event_clock import make_clock
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.inline import InlineTransport
from fedtide.engine.transports.late import timed
from fedtide.engine.transports.virtual import Simulation
from fedtide.plan import Plan
from fedtide.tasks import CROSS_ENTROPY, Criterion, Examples
from strategies import FlatParameters, Layout, Roster
from strategies.sequential_sgd import SequentialSGD
from traces import Trace

AT_SERVER = ("strategy", "select", "server-opt")  # parts of the server that may keep or write something


def update_shares(
    plan: Plan,
    sizes: NDArray[np.int64],
    trace: Trace,
    groups: NDArray[np.intp] | None = None,
    num_rounds: int | None = None,
) -> NDArray[np.float64]:
    """Return the share of each client, or group of clients, of everything that was applied to the weights.

    Without bias it is the share of the data, or of the clients with methods that count clients alike. The
    shares, of shape (G,), sum to 1, or are all 0 where nothing was applied. By default, each client is its
    own group and all rounds are played; see `applied_updates`.
    """
    own = np.arange(trace.num_clients) if groups is None else groups
    (applied,) = applied_updates(plan, sizes, trace, own, [num_rounds or plan.settings.num_rounds])
    return as_shares(applied)


def check_replayable(plan: Plan) -> None:
    """Raise SettingsError for a part of the user's own that the server would run a second time, unasked."""
    for kind in AT_SERVER:
        for part in plan.parts.get(kind, ()):
            own = dotted.is_dotted(kind, part.name) and not part.name.startswith(("flwr.", "strategies."))
            if own and not getattr(part.factory, "replayable", False):
                allowed = "set replayable = True in its class to allow that"
                raise SettingsError(f"{kind} {part.name} would run a second time for them; {allowed}")


def as_shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values divided by their sum, or as they are if that is 0."""
    total = values.sum()
    return values / total if total else values


def applied_updates(
    plan: Plan, sizes: NDArray[np.int64], trace: Trace, groups: NDArray[np.intp], after: Sequence[int]
) -> NDArray[np.float64]:
    """Return the sum applied in the direction of each group after some rounds, shape (rounds, G).

    These are local steps times their rates, as often as they count. `sizes` are n_k; `groups` has the group
    of each client, from 0 to G - 1; `after` is in ascending order. SettingsError: the method trains without
    clients.
    """
    settings = plan.settings
    if issubclass(plan.strategy, SequentialSGD):
        raise SettingsError(f"strategy {settings.strategy} trains without clients")
    data = Directions(sizes, groups)
    initial = FlatParameters(np.zeros(data.count), Layout(((data.count,),), np.dtype(np.float64)))
    clock = make_clock(trace, settings.round_ends)
    roster = Roster(sizes, clock.first.member, trace.participation, clock.forecast)
    strategy = strategies.make(plan.strategy, initial, roster, options=plan.options)
    environment = ClientEnvironment(data, data.model, settings.seed, cohort="loop")
    defaults = FitConfig(round=1, learning_rate=1.0, batch_size=1, local_steps=1)
    clients = InlineTransport(Simulation(environment, initial, clock, defaults))
    clients.clients.oracle, clients.clients.limit = LinearLosses(clients.clients.model), data.count
    limit = settings.clients_per_round or trace.num_clients
    transport = timed(clients, trace, clock, limit, initial.layout)
    manager = TraceClientManager(clock.round, transport, settings.seed)
    applied = []

    def note(record: dict[str, Any]) -> None:
        if record["round"] in after:
            applied.append(strategy.weights.copy())

    RoundServer(strategy, manager, observers=[note], clock=clock).fit(after[-1])
    return np.stack(applied)


@dataclass(frozen=True)
class Directions:
    """The data of clients with linear losses: all examples of a client are the number of its direction."""

    sizes: NDArray[np.int64]  # by client, as the directions in `groups` are
    groups: NDArray[np.intp]
    input_shape: ClassVar[tuple[int, ...]] = ()
    num_outputs: ClassVar[int] = 1
    criterion: ClassVar[Criterion] = CROSS_ENTROPY

    @property
    def count(self) -> int:
        """G, the number of directions."""
        return int(self.groups.max()) + 1

    @property
    def test(self) -> Examples:
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def model(self) -> nn.Module:
        return nn.ParameterList([nn.Parameter(torch.zeros(self.count, dtype=torch.float64))])

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        return np.full(len(rows), self.groups[client], np.int64), np.zeros(len(rows), np.int64)

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        inputs = np.repeat(self.groups[clients], self.sizes[clients])
        return inputs, np.zeros(len(inputs), np.int64)

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        return self.test


class LinearLosses(CohortOracle):
    """Gradients of linear losses, the same everywhere: -1 in the client's direction."""

    def fuses_steps(self, indices: BatchIndices, corrected: bool = False) -> bool:
        return not corrected

    def run_fused(
        self, y: Tensor, start: Tensor, rate: Tensor, batches: CohortBatches, correction: Correction
    ) -> tuple[Tensor, NDArray[np.float64]]:
        y.copy_(start)
        steps = y.new_tensor([len(client.lengths) for client in batches.clients])
        directions = batches.step(0).inputs[:, :1]
        y.scatter_add_(1, directions, steps[:, None] * rate)
        return y.new_zeros((len(batches.counts), len(y))), update_norms(y, start)

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        gradient = y.new_zeros(y.shape).scatter_(1, batch.inputs[:, :1], -1.0)
        return gradient, y.new_zeros(len(y))

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        diagonal = y.new_zeros(y.shape)
        diagonal[examples[0][0]] = 1.0
        return diagonal
