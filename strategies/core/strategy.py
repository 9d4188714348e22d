"""The base of every method: what a method overrides, then Flower's interface.

The course of a round is in coordinator.py, which replies count is decided in reading.py, and who belongs to
the federation in members.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, Literal, get_type_hints

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from numpy.typing import NDArray

from fedtide.base.contract import SGD, Rule
from fedtide.base.errors import SettingsError
from strategies.core.app import FlowerArguments
from strategies.core.coordinator import Coordinator
from strategies.core.members import Members
from strategies.core.norms import NormLimit
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters, Layout, read_parameters
from strategies.core.replies import FitResult, Replies, ReplyTable
from strategies.core.roster import Clients, Roster
from strategies.core.round import OpenTasks, RoundReport, Sent, Task
from strategies.core.selection import Selection, Uniform
from strategies.core.state import StateDict, Stateful, nested, take, within

EvaluateFn = Callable[[int, list[NDArray[Any]], dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]
LateReplies = Literal["take", "event-time", "drop"]
"""What a method does with late replies: take them, take them in event time only, or drop them."""


class FlexibleStrategy(Stateful, Strategy):
    """A federated method that handles incomplete, inactive, arriving and departing clients.

    A method overrides `update`, and where it needs them the other hooks; it names its state in `saved`. A
    round calls them in this order: `on_outside_change`, `members_changed`, `observe`, `select`,
    `shared_task`, `task`; and with the replies `farewells`, `check`, `data_changed`, and `update` or
    `empty_round`.

    Parameters
    ----------
    initial_parameters
        Weights to start from; `FlatParameters` can have buffers after them, see `Layout`.
    roster
        The clients known at the start; default: none, clients join when they are first seen.
    evaluate_fn
        Evaluates the global weights at the server, as in Flower's `FedAvg`: called with the round, the
        weights and buffers (one array per tensor) and an empty configuration. None: no evaluation.
    options
        See `Options` and the method's own subclass of it, `options_type`.

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
        Chooses whom to ask.
    initial_model
        Chooses the model to go on from when the members have changed; None: the one before.
    """

    options: Options
    saved: ClassVar[tuple[str, ...]] = (
        *("weights", "buffers", "version", "round", "learning_rate"),
        *("membership", "tasks", "norms", "layers", "selection"),
    )
    rule: Rule = SGD  # an option may choose another in `setup`
    suits: ClassVar[str] = ""  # what it is meant for, as the end of a sentence
    takes_layers: ClassVar[bool] = True  # whether it is w := w + D for an update D that may be changed
    takes_initial_model: ClassVar[bool] = True  # whether it can begin anew from another model
    late_replies: ClassVar[LateReplies] = "drop"
    memory_is_private: ClassVar[bool] = False  # whether nobody else depends on what clients remember
    needs_steps: bool = False  # whether its formula has s_k itself, not only the share of E that it is
    replayable: ClassVar[bool] = False  # whether a method of one's own may run again, see `update_shares`

    def setup(self) -> None:
        """Make the method's own state."""

    @abstractmethod
    def update(self, replies: Replies) -> None:
        """Change `self.weights` and the method's state by the active replies of a round (at least one)."""

    def empty_round(self) -> None:
        """Act on a round without active replies. Default: nothing happens."""

    def evaluated(self) -> NDArray[np.float64]:
        """Return the weights that are evaluated and end in the run folder, shape (M,).

        Default: `self.weights`, from which clients start.
        """
        return self.weights

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

    def check(self, sent: Sent, extra: Sequence[NDArray[np.floating]]) -> None:
        """Refuse, by ValueError, a reply that the method cannot use.

        It answers the task for which the client was `sent` that, maybe in an earlier round. `extra` are the
        vectors after the weights; all of their numbers are finite.
        """

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Adapt the method's state to those who enter the objective before a round, and who leave it.

        Both have data and are in ascending order; the roster is that of the round already. Clients that
        depart and are kept in the objective are in neither. State that is kept as sums over clients is right
        whatever the order: a new member adds nothing, one that leaves takes its part out, and the round
        divides by the N that it finds.
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

    # What a method need not know

    def __init__(
        self,
        initial_parameters: Parameters,
        roster: Roster | None = None,
        evaluate_fn: EvaluateFn | None = None,
        options: Options | None = None,
    ) -> None:
        if isinstance(initial_parameters, FlatParameters):
            self.wire, vector = initial_parameters.layout, initial_parameters.vector
        else:
            arrays = parameters_to_ndarrays(initial_parameters)
            self.wire = Layout.of(arrays)
            vector = self.wire.flatten(arrays)
        self.layout = self.wire.weights
        self.weights, self.buffers = self.wire.divide(vector)
        self.version = self.round = self.at_work = self.lag = 0
        self.evaluate_fn, self.arguments = evaluate_fn, FlowerArguments()
        self.knows_steps = True  # whether the options say how many local steps an app's clients do
        self.options = options if options is not None else self.options_type()()
        self.roster = roster if roster is not None else Roster()
        self.learning_rate = self.options.learning_rate
        self.selected: Clients = np.empty(0, np.intp)
        self.report = RoundReport()
        self.membership, self.tasks = Members(self), OpenTasks(self.wire)
        self.norms = NormLimit(self.options.max_update_norm, self.options.outliers == "clip")
        name = type(self).__name__
        if self.options.layers and not self.takes_layers:
            raise SettingsError(f"{name} takes no server_opt or amplify")
        if self.options.initial_model and not self.takes_initial_model:
            raise SettingsError(f"{name} takes no initial_model")
        self.layers = [layer(self.weights) for layer in self.options.layers]
        make_initial = self.options.initial_model
        self.initial_model = make_initial(self.layout, self.weights) if make_initial else None
        self.selection = self.options.select(self.roster, self.options.seed) or self.own_selection()
        self.coordinator = Coordinator(self)
        self.setup()
        if self.norms.clip and self.rule.remembers and not self.memory_is_private:
            raise SettingsError(
                f"{name}: with outliers=clip, the server would take in other updates than those that its "
                "clients remember; outliers=refuse refuses them"
            )

    @classmethod
    def options_type(cls) -> type[Options]:
        """Return the class of the method's options: what it annotates `options` with."""
        options: type[Options] = get_type_hints(cls)["options"]
        return options

    def overrides(self, hook: str) -> bool:
        """Whether the method has a hook of its own."""
        return getattr(type(self), hook) is not getattr(FlexibleStrategy, hook)

    @property
    def takes_late_replies(self) -> bool:
        """Whether late replies count in this run."""
        in_event_time = self.options.round_ends > 0
        return self.late_replies == "take" or (in_event_time and self.late_replies == "event-time")

    @property
    def probed(self) -> NDArray[np.float64] | None:
        """What clients train in this round while the method rests, shape (M,); None: they train for it."""
        return None if self.initial_model is None else self.initial_model.weights

    # Flower's interface

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial weights."""
        return self.coordinator.sent

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Bring the roster up to date, select clients and tell them what to do."""
        return self.coordinator.begin(server_round, parameters, client_manager)

    def aggregate_fit(
        self,
        server_round: int,
        results: ReplyTable | list[FitResult],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Update the global weights from the active replies; without any they usually stay."""
        numbers = self.coordinator.end(server_round, ReplyTable.of(results), failures)
        return self.coordinator.sent, numbers

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate the model at the server, if there is an `evaluate_fn`."""
        if self.evaluate_fn is None:
            return None
        return self.evaluate_fn(server_round, self.model(parameters), {})

    def model(self, parameters: Parameters) -> list[NDArray[Any]]:
        """Return the model where the server has these parameters, one array per tensor: see `evaluated`."""
        vector, extra = read_parameters(parameters, self.wire)
        model = reduce(lambda weights, layer: layer.evaluated(weights), self.layers[::-1], self.evaluated())
        if model is not self.weights:  # what it is beyond them, as a wrapper may have changed the parameters
            vector = (vector + np.pad(model - self.weights, (0, len(self.buffers)))).astype(vector.dtype)
        return [*self.wire.split(vector), *extra]

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask no client: the global model is evaluated at the server."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Return nothing, as no client was asked."""
        return None, {}

    # Resuming

    def state_dict(self) -> StateDict:
        """Return the state; tables in it are views, to be written before the next round."""
        state = super().state_dict()
        return state | (nested("probe", self.initial_model.state_dict()) if self.initial_model else {})

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state: a strategy with the same options then continues bit by bit like the saved one."""
        if take(state, "weights").shape != self.weights.shape:
            shapes = f"{take(state, 'weights').shape} where {self.weights.shape} are expected"
            raise ValueError(f"the state has weights of shape {shapes}")
        super().load_state_dict(state)
        if self.initial_model:
            self.initial_model.load_state_dict(within("probe", state))
        self.coordinator.pack()
