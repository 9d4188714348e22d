"""What a method is: its rule, its options, its state, and what it does with the replies of a round.

A method overrides `update`, and where it needs them `setup`, `observe`, `own_selection`, `select`,
`shared_task`, `task`, `empty_round`, `members_changed`, `data_changed` and `farewells`, and names its state
in `saved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.contract import SGD, FitConfig, Rule
from fedtide.ground.errors import SettingsError
from strategies.core.layers import InitialModel
from strategies.core.options import Options
from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Clients, Roster
from strategies.core.round import RoundReport, Sent, Task
from strategies.core.selection import Selection, Uniform
from strategies.core.state import Stateful

LateReplies = Literal["take", "event-time", "drop"]
"""What a method does with late replies: take them, take them in event time only, or drop them."""


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
    at_work
        How many clients were at work on earlier tasks when it began.
    selected
        Clients that were asked in it.
    lag
        Largest lag of the replies that its change of the weights is made of.
    report
        Its outcome.
    roster
        The clients, and which of them are members.
    wire, layout
        Layouts of what clients are sent, and of the weights alone.
    selection
        Who is asked.
    initial_model
        What the method goes on from when the members have changed; None: the model that it has.
    """

    options: Options
    saved: ClassVar[tuple[str, ...]] = (
        *("weights", "buffers", "version", "round", "learning_rate"),
        *("membership", "tasks", "norms", "layers", "selection"),
    )
    rule: Rule = SGD  # an option may choose another in `setup`
    suits: ClassVar[str] = ""  # what it is meant for, as the end of a sentence
    takes_layers: ClassVar[bool] = True  # whether it is w := w + D for an update D that may be changed
    late_replies: ClassVar[LateReplies] = "drop"
    replayable: ClassVar[bool] = False  # whether a method of one's own may run again, see `update_shares`
    weights: NDArray[np.float64]
    version: int
    round: int
    learning_rate: float
    at_work: int
    selected: Clients
    lag: int
    report: RoundReport
    roster: Roster
    wire: Layout
    layout: Layout
    selection: Selection
    initial_model: InitialModel | None

    def setup(self) -> None:
        """Make the method's own state."""

    @abstractmethod
    def update(self, replies: Replies) -> None:
        """Change `self.weights` and the method's state by the active replies of a round (at least one)."""

    def evaluated(self) -> NDArray[np.float64]:
        """Return the weights that are evaluated and end in the run folder, shape (M,).

        Default: `self.weights`, from which clients start.
        """
        return self.weights

    def empty_round(self) -> None:
        """Act on a round without active replies. Default: nothing happens."""

    def observe(self, available: Clients) -> None:
        """Take note of the members that are available in a round, before any of them is selected."""

    def select(self, available: Clients) -> Clients:
        """Choose the clients of a round, as many as `number_to_ask` says, by `selection`."""
        return self.selection.select(available, self.number_to_ask(len(available)), self.round)

    def own_selection(self) -> Selection:
        """Return the selection that belongs to the method, where the options name no other."""
        return Uniform(self.roster, self.options.seed)

    def number_to_ask(self, available: int) -> int:
        """Return how many of so many clients are asked: `clients_per_round` limits them.

        In event time it limits those that are at work, on earlier tasks included.
        """
        limit = self.options.clients_per_round
        if not limit:
            return available
        return min(available, max(0, limit - self.at_work) if self.options.round_ends else limit)

    def shared_task(self) -> Task:
        """Return what all clients get besides the weights, or in place of the round's weights, rate or steps.

        Default: the options that the rule names.
        """
        options = {name: name.replace("-", "_") for name in self.rule.scalars}
        known = {name: option for name, option in options.items() if hasattr(self.options, option)}
        return Task(scalars={name: getattr(self.options, option) for name, option in known.items()})

    def task(self, client: int) -> Task | None:
        """Return what is this client's own in the round; None: it gets what all get."""
        return None

    def round_config(self, shared: Task) -> FitConfig:
        """Return the scalars for all clients of the round."""
        options, rule = self.options, shared.rule or self.rule
        if missing := set(rule.scalars) - set(shared.scalars):
            raise TypeError(f"rule {rule.name} needs {sorted(missing)} in the shared task")
        config = FitConfig(
            round=self.round,
            learning_rate=self.learning_rate,
            batch_size=options.batch_size,
            model_arrays=len(self.wire.shapes),
            buffer_arrays=self.wire.num_buffers,
            frozen_checksum=self.wire.frozen_checksum,
            local_steps=0 if options.local_epochs else options.local_steps,
            local_epochs=options.local_epochs,
            rule=rule.name,
        )
        return shared.added_to(config)

    def check(self, sent: Sent, extra: Sequence[NDArray[np.floating]]) -> None:
        """Refuse, by ValueError, a reply that the method cannot use.

        It answers the task for which the client was `sent` that, maybe in an earlier round. `extra` are the
        vectors after the weights; all of their numbers are finite.
        """

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Adapt the method's state to those who enter the objective before a round, and who leave it.

        Both have data and are in ascending order; the roster is that of the round already. Who departs and is
        kept in the objective is in neither. State that is kept as sums over clients is right whatever the
        order: a new member adds nothing, one that leaves takes its part out, and the round divides by the N
        that it finds.
        """

    def data_changed(self, found: Clients, without: Clients) -> None:
        """Adapt the method's state to members whose replies show that they have data, or none.

        It comes before `update`. Those who were `found` to have data were members before, but part of no sum
        and no N; no reply of those `without` has ever counted. Default: as if they had arrived, or left.
        """
        self.members_changed(found, without)

    def farewells(self, states: Mapping[int, NDArray[np.float64] | None]) -> None:
        """Take in what clients that have left kept, shape (M,) each; None: one did not answer.

        A method that overrides this has clients with an accepted reply asked for their state when they leave
        the objective. It comes once, at the end of the round that began without them, before its `update`.
        """

    def on_outside_change(self, change: NDArray[np.float64]) -> None:
        """Adapt the method's state to a change of the weights by a wrapper, shape (M,)."""

    def on_restart(self) -> None:
        """Adapt the method's state to other weights, those to start from after a change of the members."""

    @property
    def takes_late_replies(self) -> bool:
        """Whether late replies count in this run."""
        in_event_time = self.options.round_ends > 0
        return self.late_replies == "take" or (in_event_time and self.late_replies == "event-time")

    @property
    def probed(self) -> NDArray[np.float64] | None:
        """What clients train in this round while the method rests, shape (M,); None: they train for it."""
        return None if self.initial_model is None else self.initial_model.weights

    def check_event_time(self) -> None:
        """Refuse, by ValueError, rounds that end while others are at work, if late replies are dropped."""
        B, C = self.options.round_ends, self.options.clients_per_round
        most = C or len(self.roster)
        if 0 < B < most and not self.takes_late_replies:
            name, limit = type(self).__name__, C or f"0, that is all {most}"
            raise SettingsError(
                f"{name} drops late replies, and most would be late with round-ends {B} and "
                f"clients-per-round {limit}: set round-ends to {most} or more, or take a method that counts "
                "them, such as mifa"
            )

    @property
    def expects_farewell(self) -> bool:
        """Whether clients that leave the objective are asked for the state that they keep."""
        return type(self).farewells is not Method.farewells
