"""What a method is: its rule, its options, its state, and what it does with the replies of a round.

A method overrides `update`, and where it needs them `setup`, `observe`, `select`, `shared_task`, `task`,
`empty_round`, `on_arrival` and `on_departure`, and names its state in `saved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.contract import SGD, Rule
from strategies.core.instructions import Task
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters
from strategies.core.replies import Replies
from strategies.core.report import RoundReport
from strategies.core.roster import Clients, Roster
from strategies.core.state import Stateful
from strategies.core.tasks import Sent

LateReplies = Literal["take", "drop"]
"""What a method does with late replies."""


class Method(Stateful, ABC):
    """What a federated method overrides, and what it may read.

    Attributes
    ----------
    weights
        Global weights in float64, shape (M,), without the model's buffers, which the base class averages;
        clients get them in the type of `initial_parameters`.
    version
        How often they have changed.
    round, learning_rate
        The present round and the clients' rate in it.
    selected
        Clients that were asked in it.
    report
        What it brought.
    roster
        The clients, and who of them is a member.
    """

    options: Options
    saved: ClassVar[tuple[str, ...]] = (
        *("weights", "version", "round", "learning_rate"),
        *("membership", "tasks", "norms", "layers"),
    )
    rule: ClassVar[Rule] = SGD
    suits: ClassVar[str] = ""  # what it is meant for, as the end of a sentence
    takes_layers: ClassVar[bool] = True  # whether it is w := w + D for an update D that may be changed
    late_replies: ClassVar[LateReplies] = "drop"
    weights: NDArray[np.float64]
    version: int
    round: int
    learning_rate: float
    selected: Clients
    report: RoundReport
    roster: Roster

    def setup(self) -> None:
        """Make the method's own state."""

    @abstractmethod
    def update(self, replies: Replies) -> None:
        """Change `self.weights` and the method's state by the active replies of a round (at least one)."""

    def empty_round(self) -> None:
        """Act on a round without active replies. Default: nothing happens."""

    def observe(self, available: Clients) -> None:
        """Take note of the members that are available in a round, before any of them is selected."""

    def select(self, available: Clients) -> Clients:
        """Choose the clients of a round: `clients_per_round` of those available, uniformly, by the seed."""
        count = self.options.clients_per_round or len(available)
        if count >= len(available):
            return available
        rng = np.random.default_rng([self.options.seed, *b"select", self.round])
        return np.sort(rng.choice(available, count, replace=False))

    @property
    def work(self) -> Options:
        """What clients are asked to do in the present round: the options, unless a method varies them."""
        return self.options

    def shared_task(self) -> Task:
        """Return what all clients get besides the weights. Default: the options that the rule names."""
        options = {name: name.replace("-", "_") for name in self.rule.scalars}
        known = {name: option for name, option in options.items() if hasattr(self.options, option)}
        return Task(scalars={name: getattr(self.options, option) for name, option in known.items()})

    def task(self, client: int) -> Task | None:
        """Return what one client gets besides the weights and the shared task; None: nothing."""
        return None

    def start(self, client: int) -> FlatParameters | None:
        """Return the weights that a client is sent, the same while it is at work; None: the global ones."""
        return None

    def check_late(self, sent: Sent) -> None:
        """Refuse, by ValueError, a late reply to the task for which this was sent."""
        if self.late_replies != "take":
            raise ValueError(f"late reply of round {sent.round}: {type(self).__name__} takes none")

    def check_extra(self, extra: list[NDArray[np.floating]]) -> None:
        """Refuse, by ValueError, vectors of a reply that follow its weights (all are finite already)."""

    def on_arrival(self, client: int) -> None:
        """Adapt the method's state to a new member with data (it is in the roster already)."""

    def on_departure(self, client: int, keep: bool) -> None:
        """Adapt the method's state to a departure; `keep`: the client stays in the objective."""

    def on_outside_change(self, change: NDArray[np.float64]) -> None:
        """Adapt the method's state to a change of the weights by a wrapper, shape (M,)."""

    def on_discarded_update(self) -> None:
        """Forget what made the new weights too large to be taken over, where it would do so again."""

    def leaves_memory(self, client: int) -> bool:
        """Whether a client that leaves the objective is asked for the state that it keeps."""
        return False

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Take in the state of a client that has left, shape (M,); None: it did not answer.

        This comes after `on_departure`, at the end of the same round and before its `update`.
        """
