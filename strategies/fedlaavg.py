"""FedLaAvg: clients that were absent longest train, and the latest update of every client counts.

Yan et al. 2020, "Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client
Availability", Algorithm 2. In round t, with C^t the available clients and T_i the last round of client i,

    B^t := the K clients of C^t with the lowest T_i,     T_i := t for i in B^t,
    u := u + (1/N) sum_{i in B^t} (u_i^new - u_i^old),   x := x + u.

The server keeps each u_i and their sum, which it divides by the current N; with `memory=client` the clients
keep them and upload the differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.common import Parameters
from numpy.typing import NDArray

from strategies.core.interfaces import Task
from strategies.core.options import choose
from strategies.core.parameters import FloatVector
from strategies.core.replies import Replies, read_vector
from strategies.core.roster import Roster
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.client_memory import LatestSum, MemoryOptions
from strategies.memory.table import SummedTable


def longest_absent(available: NDArray[np.intp], last: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Choose the `count` clients with the lowest T_i, of equal ones those with the lower index."""
    oldest_first = np.argsort(last[available], kind="stable")
    return np.sort(available[oldest_first[:count]])


def relative_sizes(roster: Roster, clients: NDArray[np.intp]) -> NDArray[np.float64]:
    """N p_i = n_i / (mean n of the members); 1 for a client of unknown size. Shape (K,)."""
    known = roster.num_examples[roster.member & (roster.num_examples > 0)]
    sizes = roster.num_examples[clients]
    return np.where(sizes > 0, sizes / (known.mean() if len(known) else 1.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class FedLaAvgOptions(MemoryOptions):
    """Options of FedLaAvg; K is `clients_per_round`.

    Attributes
    ----------
    units
        `gradient` keeps sums of gradients and applies them with the current rate (the authors' code),
        `update` keeps changes of the weights (Algorithm 2); the same where the rate is constant.
    weights
        How a client counts with its share p_i: `agg` multiplies its update by N p_i, `loss` its local
        objective and so its learning rate (the paper), `none` counts all clients alike.
    normalize
        Scale incomplete work by E / s_i; the paper knows no incomplete clients, `false` takes it as it is.
    empty
        In a round without replies: `skip` rests, `move` applies the old updates once more (the paper).
    """

    units: str = "gradient"
    weights: str = "agg"
    normalize: bool = True
    empty: str = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("units", self.units, ("gradient", "update"))
        choose("weights", self.weights, ("agg", "loss", "none"))
        choose("empty", self.empty, ("skip", "move"))
        if self.memory == "client" and self.normalize and self.local_epochs:
            raise ValueError(
                "memory is 'client' with local-epochs: the work of clients cannot be scaled by E / s, as E "
                "differs by client; set normalize=false, or local-steps instead of local-epochs"
            )


class FedLaAvg(FlexibleStrategy):
    """Mean of all clients' latest updates; those train who were absent longest: x += (1/N) sum_i u_i."""

    options_type = FedLaAvgOptions
    options: FedLaAvgOptions
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "latest")

    def setup(self) -> None:
        """Start as if every client had sent 0 before the first round."""
        self.latest: SummedTable | LatestSum = SummedTable(self.layout, self.options)  # u_i
        if self.options.memory == "client":
            self.latest = LatestSum(self.layout.size)
            self.rule, self.client_memory = "difference-upload", True

    def select(self, available: NDArray[np.intp]) -> NDArray[np.intp]:
        """Choose the K available clients that were absent longest; one without data would always be it."""
        willing = available[~self.roster.data_less[available]]
        return longest_absent(willing, self.roster.accepted, self.options.clients_per_round or len(willing))

    def shared_task(self) -> Task:
        """With memory at the clients: whether they scale incomplete work."""
        return Task(config=(("normalize", self.options.normalize),)) if self.client_memory else Task()

    def task(self, client: int) -> Task | None:
        """Return what is the client's own: its rate with `loss`, u_i / delta_i with memory at the clients.

        The gradient of N p_i F_i is N p_i times as long as that of F_i: that is a matter of the rate.
        """
        arrays: tuple[NDArray[Any], ...] = ()
        config: tuple[tuple[str, float], ...] = ()
        if self.options.weights == "loss":
            factor = float(relative_sizes(self.roster, np.array([client]))[0])
            config = (("learning-rate", self.learning_rate * factor),)
        if self.client_memory:  # the client divides by its steps
            E = float(self.options.local_steps) if self.options.normalize else 1.0
            arrays = ((self._factors(np.array([client])) * E).astype(self.layout.dtype),)
        return Task(arrays, config)

    def decode(self, parameters: Parameters) -> tuple[FloatVector, list[NDArray[Any]]]:
        """Read u_i^new - u_i^old, with memory at the clients."""
        if self.client_memory:
            return read_vector(parameters, self.layout.size), []
        return super().decode(parameters)

    def update(self, replies: Replies) -> None:
        """Replace the updates of those who replied, and move by the mean of all."""
        if isinstance(self.latest, LatestSum):
            self.latest.add(replies, self.roster.accepted[replies.clients] > 0)
        else:
            work = replies.planned / replies.steps if self.options.normalize else 1.0
            self.latest.replace(replies, self._factors(replies.clients) * work)
        self._move()

    def empty_round(self) -> bool:
        """Move by the mean of the old updates, with `move`."""
        return self.options.empty == "move" and self._move()

    def on_departure(self, client: int, keep: bool) -> None:
        """Take the update of a client that leaves the objective out of the sum; if it returns, it is new."""
        if not keep and isinstance(self.latest, SummedTable):
            self.latest.drop(client)
            self.roster.accepted[client] = 0

    def leaves_memory(self, client: int) -> bool:
        """Whether u_l is known to the client alone."""
        return self.client_memory and bool(self.roster.accepted[client])

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Take out the u_l that a client told that left; if it returns, it is new."""
        assert isinstance(self.latest, LatestSum)
        self.latest.take_back(memory)
        self.roster.accepted[client] = 0

    def _factors(self, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """u_i / delta_i of complete work, shape (K,)."""
        factors = np.ones(len(clients))
        if self.options.weights == "agg":
            factors = relative_sizes(self.roster, clients)
        return factors / -self.learning_rate if self.options.units == "gradient" else factors

    def _move(self) -> bool:
        """Apply x += (1/N) sum_i u_i, or x -= eta_t (1/N) sum_i u_i in units of gradients."""
        rate = -self.learning_rate if self.options.units == "gradient" else 1.0
        count = self.roster.num_contributors + self.latest.orphans
        self.weights += rate / max(1, count) * self.latest.total
        return bool(self.latest.total.any())
