"""The base of every strategy: a Flower `Strategy` for clients that come and go.

A method overrides `update`, and where it needs them `setup`, `select`, `shared_task`, `task`, `empty_round`,
`on_arrival` and `on_departure`, and names its state in `saved`; everything about Flower and about whose reply
counts happens here, and in membership.py what happens when clients come and go.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal, get_type_hints

import numpy as np
from flwr.common import FitIns, FitRes, Parameters, Scalar, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from flexfl.contract import SGD, FitConfig, Rule, metrics
from strategies.core.decoding import NoExamplesError, answers, read_reply
from strategies.core.evaluation import ServerEvaluated
from strategies.core.instructions import RoundInstructions, Task
from strategies.core.interfaces import EvaluateFn, Trainer
from strategies.core.membership import Membership
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters, Layout, read_parameters
from strategies.core.replies import Replies, Reply
from strategies.core.report import RoundReport
from strategies.core.roster import Clients, Roster
from strategies.core.state import StateDict, Stateful, take
from strategies.core.tasks import OpenTasks, Sent

LateReplies = Literal["take", "drop", "refuse"]
"""What a method does with late replies; `refuse`: it does not run where there can be any."""


class FlexibleStrategy(Stateful, ServerEvaluated):
    """A federated method that handles incomplete, inactive, arriving and departing clients.

    Parameters
    ----------
    initial_parameters
        Weights to start from.
    roster
        The clients known at the start; default: none, clients join when they are first seen.
    evaluate_fn
        Evaluation of the global weights at the server, as in Flower's `FedAvg`.
    options
        See `Options` and the method's own subclass of it, `options_type`.
    trainer
        Trains where the data are; only methods that ask no client need it.

    Attributes
    ----------
    weights
        Global weights in float64, shape (M,); clients get them in the type of `initial_parameters`.
    version
        How often they have changed.
    round, learning_rate
        The present round and the clients' rate in it.
    selected
        Clients that were asked in it.
    report
        What it brought.
    """

    options: Options
    saved: ClassVar[tuple[str, ...]] = (
        *("weights", "version", "round", "learning_rate"),
        *("membership", "tasks", "layers"),
    )
    rule: ClassVar[Rule] = SGD
    suits: ClassVar[str] = ""  # what it is meant for, as the end of a sentence
    takes_layers: ClassVar[bool] = True  # whether it is w := w + D for an update D that may be changed
    late_replies: ClassVar[LateReplies] = "drop"

    def __init__(
        self,
        initial_parameters: Parameters,
        roster: Roster | None = None,
        evaluate_fn: EvaluateFn | None = None,
        options: Options | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        arrays = parameters_to_ndarrays(initial_parameters)
        self.layout = Layout.of(arrays)
        self.weights: NDArray[np.float64] = self.layout.flatten(arrays).astype(np.float64)
        self.evaluate_fn, self.trainer = evaluate_fn, trainer
        self.options = options if options is not None else self.options_type()()
        self.membership = Membership(roster if roster is not None else Roster(), self.options, self)
        self.tasks = OpenTasks(self.layout)
        self.version = self.round = 0
        self.learning_rate = self.options.learning_rate
        self.selected: Clients = np.empty(0, np.intp)
        self.report = RoundReport()
        if self.options.layers and not self.takes_layers:
            raise ValueError(f"{type(self).__name__} takes neither a server optimiser nor amplification")
        self.layers = [layer(self.weights) for layer in self.options.layers]
        self._sent = self._pack()
        self.setup()

    @classmethod
    def options_type(cls) -> type[Options]:
        """Return the class of the method's options: what it annotates `options` with."""
        options: type[Options] = get_type_hints(cls)["options"]
        return options

    @property
    def roster(self) -> Roster:
        """The clients, and who of them is a member."""
        return self.membership.roster

    # What a method overrides

    def setup(self) -> None:
        """Make the method's own state."""

    @abstractmethod
    def update(self, replies: Replies) -> None:
        """Change `self.weights` and the method's state by the active replies of a round (at least one)."""

    def empty_round(self) -> None:
        """Act on a round without active replies. Default: nothing happens."""

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
        """Return what all clients of a round get besides the weights."""
        return Task()

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

    def leaves_memory(self, client: int) -> bool:
        """Whether a client that leaves the objective is asked for the state that it keeps."""
        return False

    def on_farewell(self, client: int, memory: NDArray[np.float64] | None) -> None:
        """Take in the state of a client that has left, shape (M,); None: it did not answer.

        This comes after `on_departure`, at the end of the same round and before its `update`.
        """

    # Flower's side

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial weights."""
        return self._sent

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Bring the roster up to date, select clients and tell them what to do."""
        self.round = server_round
        self._adopt(parameters)
        available, at_work, proxy = self.membership.begin(server_round, client_manager)
        self.tasks.begin(server_round, at_work, self.roster.asked)
        self.report = RoundReport(events=self.membership.events)
        self.selected = self.select(available)
        self.roster.asked[self.selected] = server_round
        schedule, options = self.options.lr_schedule, self.options
        rate = schedule(options.learning_rate, server_round, self.roster.shift, options.local_steps)
        self.learning_rate = self.report.learning_rate = float(rate)
        self.tasks.ask(self.selected, Sent(server_round, self._sent, self.learning_rate, self.version))
        shared = self.shared_task()
        instructions = RoundInstructions(FitIns, self._sent, shared.arrays, self._config(shared))
        for client in self.selected.tolist():
            instructions.add(proxy(client), self.own_task(client))
        self.membership.ask_leaving(instructions, proxy)
        return instructions

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Update the global weights from the active replies; without any they usually stay."""
        report = self.report
        if server_round != self.round:  # nobody was asked for it
            report = self.report = RoundReport(self.learning_rate)
        else:
            results, report.rejected = self.membership.take_leave(server_round, results, self.layout.size)
        replies, before = self._read(server_round, results), self.weights.copy()
        report.active = replies.clients
        report.incomplete = int((replies.steps < replies.planned).sum())
        if len(replies):
            self.membership.learn(replies)
            self.update(replies)
            self.roster.accept(replies.clients, server_round)
        elif server_round == self.round:
            self.empty_round()
        if server_round == self.round:
            for layer in self.layers:
                self.weights = layer.apply(before, self.weights, server_round)
        if not np.array_equal(self.weights, before):
            self._sent = self._pack()
            self.version += 1
        told: dict[str, Scalar] = {"active": len(replies), "rejected": len(report.rejected)}
        known = np.isfinite(replies.train_loss)
        if known.any():
            mean = np.average(replies.train_loss[known], weights=replies.num_examples[known])
            told[metrics.TRAIN_LOSS] = float(mean)
        return self._sent, told

    # Resuming

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from a state: a strategy with the same options then does bit by bit what this one would."""
        if take(state, "weights").shape != self.weights.shape:
            shapes = f"{take(state, 'weights').shape} where {self.weights.shape} are expected"
            raise ValueError(f"the state has weights of shape {shapes}")
        super().load_state_dict(state)
        self._sent = self._pack()

    # Details

    def own_task(self, client: int) -> Task | None:
        """Return what a client gets of its own: also its weights, and what settles its last reply."""
        task, weights = self.task(client), self.start(client)
        accepted = int(self.roster.accepted[client]) if self.rule.remembers else None
        if accepted is None and weights is None:
            return task
        return replace(task or Task(), last_accepted=accepted, weights=weights)

    def _adopt(self, parameters: Parameters) -> None:
        """Take over the weights if the server, or a wrapper such as differential privacy, changed them."""
        if parameters is not self._sent:
            before, self.weights = (
                self.weights,
                read_parameters(parameters, self.layout)[0].astype(np.float64),
            )
            self._sent = self._pack()
            self.on_outside_change(self.weights - before)

    def _read(self, server_round: int, results: list[tuple[ClientProxy, FitRes]]) -> Replies:
        """Keep the active replies; the report names the others.

        That a client departs is believed whatever its work is worth, unless the reply is late.
        """
        active: dict[int, Reply] = {}
        for proxy, result in results:
            client = self.roster.find(proxy.cid)
            sent = self.tasks.of(client, server_round)
            if client is None or sent is None:
                self.report.rejected.append((proxy.cid, "was not asked in this round"))
                continue
            try:
                if client in active:
                    raise ValueError("second reply in one round")
                if result.metrics.get(metrics.DEPARTING) and answers(result, sent.round):
                    self.membership.announce_departure(client)
                if sent.round != server_round:
                    self.check_late(sent)
                own = self.start(client)
                sent = sent if own is None else sent._replace(weights=own)
                reply = read_reply(client, result, sent, self.rule, self.work)
                self.check_extra(list(reply.extra))
                active[client] = reply
            except ValueError as reason:
                self.report.rejected.append((proxy.cid, str(reason)))
                if isinstance(reason, NoExamplesError):
                    self.membership.learn_data_less(client)
            else:
                if sent.round != server_round:
                    lag = self.version - sent.version
                    self.report.late.append({"client": client, "task": sent.round, "lag": lag})
        self.report.late.sort(key=lambda entry: entry["client"])
        return Replies.collect(active, self.layout.size, self.version)

    def _pack(self) -> FlatParameters:
        return FlatParameters(self.weights.astype(self.layout.dtype), self.layout)

    def _config(self, shared: Task) -> FitConfig:
        """Return the scalars for all clients of a round."""
        work = self.work
        if missing := set(self.rule.scalars) - set(shared.scalars):
            raise TypeError(f"rule {self.rule.name} needs {sorted(missing)} in the shared task")
        return FitConfig(
            round=self.round,
            learning_rate=self.learning_rate,
            batch_size=work.batch_size,
            model_arrays=len(self.layout.shapes),
            local_steps=0 if work.local_epochs else work.local_steps,
            local_epochs=work.local_epochs,
            rule=self.rule.name,
            own=shared.scalars,
        )
