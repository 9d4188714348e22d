"""MimiC: each client's update is corrected so that it mimics the mean over all clients.

Sun et al. 2024, "MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates", IEEE
Transactions on Mobile Computing, Algorithm 1. With ghat_i the mean gradient of a client's local steps,

    v_t := (1/|S_t|) sum_{i in S_t} (ghat_i + c_i),   w := w - eta_t v_t,   c_i := v_t - ghat_i  for i in S_t.

The corrections of all members sum to 0 after every round, whoever took part: the optimum is not shifted. They
are kept by the server, or with `memory=client` by the clients, see strategies/memory/corrections.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.common import Parameters
from numpy.typing import NDArray

from strategies.core.interfaces import Task
from strategies.core.options import choose, positive
from strategies.core.parameters import FloatVector
from strategies.core.replies import Replies, read_vector
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.client_memory import MemoryOptions
from strategies.memory.corrections import ClientCorrections, ServerCorrections


@dataclass(frozen=True, kw_only=True)
class MimiCOptions(MemoryOptions):
    """Options of MimiC.

    Attributes
    ----------
    units
        `gradient` keeps corrections of mean gradients and applies them with the current rate (the paper),
        `update` those of rate times sum of gradients, at the old rate (the authors' code): incomplete work
        is taken as it is, the server's step is 1, and `rate` has no meaning.
    rate
        eta_t, the server's: `code` takes E times the local rate, so that a round goes as far as in FedAvg;
        `paper` has a rate of its own, with which a round goes as far as one local step.
    global_rate, global_decay
        eta_t = global_rate * global_decay^(t-1) with `paper`. Table II: 0.01 with 0.95 or 0.99.
    warm_up
        Ask every client that is available, not only `clients_per_round`, until the first have replied: the
        paper assumes that all clients take part in the first round.
    """

    units: str = "gradient"
    rate: str = "code"
    global_rate: float = 0.01
    global_decay: float = 1.0
    warm_up: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("units", self.units, ("gradient", "update"))
        choose("rate", self.rate, ("code", "paper"))
        positive("global-rate", self.global_rate)
        if not 0 < self.global_decay <= 1:
            raise ValueError(f"global-decay is {self.global_decay}; it must be in (0, 1]")


class MimiC(FlexibleStrategy):
    """Mean of updates, each corrected by how it differed from the mean when its client was last there."""

    options_type = MimiCOptions
    options: MimiCOptions
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "memory", "started")

    def setup(self) -> None:
        """Start with c_i = 0."""
        kind = ServerCorrections if self.options.memory == "server" else ClientCorrections
        self.memory: ServerCorrections | ClientCorrections = kind(self.layout, self.options, self.roster)
        self.started = False
        if isinstance(self.memory, ClientCorrections):
            self.rule, self.client_memory = "corrected-upload", True

    def shared_task(self) -> Task:
        """With memory at the clients: what they call ghat_i."""
        if not self.client_memory:
            return Task()
        return Task(config=(("per-step", self.options.units == "gradient"),))

    def task(self, client: int) -> Task | None:
        """With memory at the clients: v of the client's last accepted round."""
        if not isinstance(self.memory, ClientCorrections):
            return None
        b = self.memory.outgoing(client)
        return None if b is None else Task(arrays=(b,))

    def decode(self, parameters: Parameters) -> tuple[FloatVector, list[NDArray[Any]]]:
        """Read ghat_i + c_i, with memory at the clients."""
        if self.client_memory:
            return read_vector(parameters, self.layout.size), []
        return super().decode(parameters)

    def select(self, available: NDArray[np.intp]) -> NDArray[np.intp]:
        """Choose by the seed, after the warm-up."""
        return super().select(available) if self.started or not self.options.warm_up else available

    def update(self, replies: Replies) -> None:
        """Algorithm 1, lines 5 to 10."""
        v = self.memory.mean(replies, self._per_delta(replies), self.round)
        self.weights -= self._server_rate(replies) * v
        self.started = True

    def on_arrival(self, client: int) -> None:
        """Start a new member with c_l = 0, which keeps the sum."""
        self.memory.arrive(client)

    def on_departure(self, client: int, keep: bool) -> None:
        """Hand c_l over; if the client stays in the objective, the bias that it leaves is meant."""
        if not keep:
            self.memory.depart(client)

    def leaves_memory(self, client: int) -> bool:
        """Whether c_l is known to the client alone."""
        return self.client_memory and bool(self.roster.accepted[client])

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Hand over the c_l of a client that told its ghat_l; if it returns, it is new."""
        assert isinstance(self.memory, ClientCorrections)
        self.memory.farewell(client, memory, self.round)
        self.roster.accepted[client] = 0

    def _per_delta(self, replies: Replies) -> NDArray[np.float64]:
        """ghat_i / delta_i, shape (K,): -1 / (eta s_i) by the client's own steps; -1 in units of updates."""
        if self.options.units == "update":
            return -np.ones(len(replies))
        return -1 / (self.learning_rate * replies.steps)

    def _server_rate(self, replies: Replies) -> float:
        """eta_t."""
        if self.options.units == "update":
            return 1.0
        if self.options.rate == "paper":
            return self.options.global_rate * self.options.global_decay ** (self.round - 1)
        return self.learning_rate * float(replies.planned.mean())  # E, the mean where it differs by client
