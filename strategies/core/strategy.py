"""The base of every strategy: a Flower `Strategy` for clients that come and go.

What a method overrides is in method.py, which replies count is decided in reading.py, and who belongs to the
federation in members.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, get_type_hints

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from numpy.typing import NDArray

from fedtide.ground.contract import SGD, FitConfig, metrics
from fedtide.ground.errors import ResultError, change_in_place
from fedtide.ground.wording import plain
from strategies.core.members import Members, is_availability_manager
from strategies.core.method import Method
from strategies.core.norms import MAX_RESULT, NormLimit
from strategies.core.options import FlowerArguments, Options, check_rule, is_plain
from strategies.core.parameters import (
    FlatParameters,
    FloatVector,
    Layout,
    check_range,
    largest,
    read_parameters,
)
from strategies.core.reading import ReplyReader
from strategies.core.replies import FitResult, Replies, ReplyTable
from strategies.core.roster import Clients, Roster
from strategies.core.round import OpenTasks, RoundInstructions, RoundReport, Sent, Task
from strategies.core.selection import checked_choice, failed
from strategies.core.state import StateDict, nested, take, within

EvaluateFn = Callable[[int, list[NDArray[Any]], dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class FlexibleStrategy(Method, Strategy):
    """A federated method that handles incomplete, inactive, arriving and departing clients; see `Method`.

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
    """

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
        self.layout = self.wire.weights  # what methods see
        self.weights: NDArray[np.float64]
        self.weights, self.buffers = self._divided(vector)
        self.evaluate_fn = evaluate_fn
        self.options = options if options is not None else self.options_type()()
        self.arguments = FlowerArguments()
        self.roster = roster if roster is not None else Roster()
        self.check_event_time()
        self.membership = Members(self)
        self.tasks = OpenTasks(self.wire)
        self.norms = NormLimit(self.options.max_update_norm, self.options.outliers == "clip")
        self.replies = ReplyReader(self, self.tasks, self.membership, self.norms)
        self.version = self.round = self.at_work = self.lag = 0
        self.learning_rate = self.options.learning_rate
        self.selected: Clients = np.empty(0, np.intp)
        self.report = RoundReport()
        self._open: dict[int, RoundReport] = {}  # the round that was begun, until it is aggregated
        self._recorded, self._logged = False, set[tuple[str, str]]()
        self._packed: dict[int, FlatParameters] = {}
        self._config: FitConfig  # of the round
        if not self.takes_layers and (self.options.layers or self.options.initial_model):
            raise ValueError(f"{type(self).__name__} takes no server_opt, amplify or initial_model")
        self.layers = [layer(self.weights) for layer in self.options.layers]
        make_initial = self.options.initial_model
        self.initial_model = make_initial(self.layout, self.weights) if make_initial else None
        self.selection = self.options.select(self.roster, self.options.seed) or self.own_selection()
        self._sent = self._pack()
        self.setup()

    @classmethod
    def options_type(cls) -> type[Options]:
        """Return the class of the method's options: what it annotates `options` with."""
        options: type[Options] = get_type_hints(cls)["options"]
        return options

    # Flower's side

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial weights."""
        return self._sent

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Bring the roster up to date, select clients and tell them what to do."""
        self.round = server_round
        self._recorded = is_availability_manager(client_manager)  # by our engine
        if not self._recorded:
            self.options = self.arguments.wait(client_manager, self.options)
        self._adopt(parameters)
        available, at_work, proxy = self.membership.begin(server_round, client_manager)
        if self.initial_model:
            self.initial_model.begin(server_round, self.roster, self.weights, self.buffers)
        probed = self.probed
        awaited = self.roster.member[at_work]
        self.tasks.begin(server_round, at_work[awaited & (self.roster.asked[at_work] > 0)])
        self.at_work = int(awaited.sum())
        self.report = RoundReport(events=self.membership.events)
        self._open = {server_round: self.report}
        self.learning_rate = self.report.learning_rate = self._scheduled_rate() * (
            1.0 if probed is None else 0.5
        )
        self.observe(available)
        self.selected = checked_choice(self.select, self.select(available), available)
        self.roster.asked[self.selected] = server_round
        self._packed = {}
        if probed is None:
            shared = self._with_buffers(self.shared_task())
        else:
            shared = Task(rule=SGD, weights=self.pack(probed))
        sent = Sent(server_round, self._sent, self.learning_rate, self.version).with_own(shared)
        config = self.round_config(shared)
        self._config = config if self._recorded else self.arguments.added_to(config)
        instructions = RoundInstructions(FitIns, sent.weights, shared.arrays, self._config)
        instructions.withdrawn = [str(client) for client in at_work[~awaited].tolist()]
        selected = self.selected.tolist()
        self.tasks.ask(selected, sent)
        for client in selected:
            if (task := self.own_task(client) if probed is None else None) is not None:
                self.tasks.ask([client], sent.with_own(task))
            instructions.add(proxy(client), task)
        self.membership.ask_leaving(instructions, proxy)
        return instructions

    def _scheduled_rate(self) -> float:
        """Return the learning rate of the round; with local epochs, E is the mean over the members."""
        options, E = self.options, float(self.options.local_steps)
        if options.local_epochs:
            E = options.mean_steps(self.roster.num_examples[self.roster.contributors])
        given = options.lr_schedule(options.learning_rate, self.round, self.roster.shift, E)
        try:
            rate = float(given)
        except (TypeError, ValueError):
            rate = math.nan
        if not math.isfinite(rate):
            raise ResultError(options.lr_schedule, f"gives {plain(given, 60)}, not a learning rate")
        return rate

    def aggregate_fit(
        self,
        server_round: int,
        results: ReplyTable | list[FitResult],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Update the global weights from the active replies; without any they usually stay."""
        asked = server_round in self._open  # otherwise nobody was asked for it, or it is over
        report = self.report = self._open.pop(server_round, RoundReport(self.learning_rate))
        table = ReplyTable.of(results)
        self._check_rule(table)
        farewells, others = self.replies.farewells(server_round, table)
        if asked:
            self.membership.take_leave(farewells, report)
        replies, before = self.replies.read(server_round, others), self.weights.copy()
        if asked:
            self.tasks.end()
        buffers = self.buffers
        probing = self.probed is not None
        if asked and not probing:
            self.selection.note(server_round, replies, failed(failures, report, self.roster))
        report.active, report.planned, report.steps = replies.clients, replies.planned, replies.steps
        report.incomplete = int((replies.steps < replies.planned).sum())
        self.lag = int(replies.lag.max(initial=0))
        self.membership.note_data(replies)
        if probing:
            self._end_probe(replies)
        elif len(replies):
            self.membership.note_losses(replies)
            if self.initial_model:
                self.initial_model.trained = True
            self._update(replies)
            if len(self.buffers):
                self.buffers = replies.mean_buffers()
            self.roster.accepted[replies.clients] = server_round
        elif asked:
            self.empty_round()
        if asked and not probing:
            self._finish_update(before)
        moved = not np.array_equal(self.weights, before)
        self.version += moved
        if moved or not np.array_equal(self.buffers, buffers):
            self._sent = self._pack()
        if not self._recorded:
            report.warn(server_round, self._logged)
        fit_metrics: dict[str, Scalar] = {"active": len(replies), "rejected": len(report.rejected)}
        if (loss := replies.mean_train_loss()) is not None:
            fit_metrics[metrics.TRAIN_LOSS] = loss
        if (aggregated := self.arguments.fit_metrics_aggregation_fn) is not None:
            active = {*replies.clients.tolist()}
            answers = zip(table.names, table.results, strict=True)
            counted = [found for name, found in answers if self.roster.find(name) in active]
            fit_metrics |= aggregated([(found.num_examples, found.metrics) for found in counted])
        return self._sent, fit_metrics | report.counts()

    def _check_rule(self, table: ReplyTable) -> None:
        """Raise SettingsError if a client of an app has not followed the method's rule."""
        trusted = self._recorded or self.arguments.client_rule == "trust" or self.probed is not None
        if trusted or is_plain(self.rule.name, self._config.own):
            return
        method = type(self).__name__
        for name, result in zip(table.names, table.results, strict=True):
            if result.status.code == Code.OK:
                check_rule(method, f"client {name}", self.rule.name, result.metrics.get(metrics.RULE))

    def identify(self, name: str, client_id: str) -> None:
        """Learn between `configure_fit` and `aggregate_fit` who a client is that was known as `name`.

        If a client of that identity is known, the new one was that one all along: it answers the task.
        """
        client, known = self.roster.register(name), self.roster.find(client_id)
        if known is None:
            self.roster.rename(client, client_id)
        elif known != client:
            self.tasks.hand_over(client, known)
            self.roster.asked[known] = self.roster.asked[client]
            self.membership.merge(client, known)

    # Evaluation

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
        self._sent = self._pack()

    # Details

    def own_task(self, client: int) -> Task | None:
        """Return what is a client's own: the method's task, and what settles the client's last reply."""
        task = self.task(client)
        if self.rule.remembers:
            accepted = int(self.roster.accepted[client])
            task = replace(task, last_accepted=accepted) if task else Task(last_accepted=accepted)
        return task and self._with_buffers(task)

    def _with_buffers(self, task: Task) -> Task:
        """Return a task whose weights, if it has some of its own, are followed by the model's buffers."""
        if task.weights is None or not self.wire.num_buffers:
            return task
        key = id(task.weights)  # several clients may start from the same model
        if key not in self._packed:
            self._packed[key] = self.pack(task.weights.vector)
        return replace(task, weights=self._packed[key])

    def pack(self, weights: FloatVector) -> FlatParameters:
        """Return weights, shape (M,), as clients get them: with the model's buffers, if it has any."""
        if not self.wire.num_buffers:
            return FlatParameters(weights.astype(self.layout.dtype, copy=False), self.layout)
        return FlatParameters(np.concatenate([weights, self.buffers]).astype(self.wire.dtype), self.wire)

    def _adopt(self, parameters: Parameters) -> None:
        """Take over the weights if the server, or a wrapper such as differential privacy, changed them."""
        if parameters is not self._sent:
            before, changed = self.weights, read_parameters(parameters, self.wire)[0]
            weights, buffers = self._divided(changed)
            if not largest(weights) <= MAX_RESULT:  # False for NaN
                raise ValueError(
                    "the weights that a wrapper of the strategy returned are not finite, or too large"
                )
            check_range(buffers, self._sent.buffers)
            self.weights, self.buffers = weights, buffers
            self._sent = self._pack()
            self.on_outside_change(self.weights - before)

    def _end_probe(self, replies: Replies) -> None:
        """Take in the replies of a probe round; begin anew from the model that the last one leads to."""
        assert self.initial_model is not None
        model = self.initial_model.end(replies, self.weights, self.buffers, self.report)
        if model is not None:
            self.weights, self.buffers = model
            for layer in self.layers:
                layer.restart(self.weights, self.round)
            self.on_restart()

    def _update(self, replies: Replies) -> None:
        """Have the method change the weights, and check that it leaves some."""
        change_in_place("self.weights", self.update, replies)
        weights = np.asarray(self.weights)
        if weights.shape != (self.layout.size,) or weights.dtype.kind not in "fiu":
            left = f"{weights.dtype} of shape {weights.shape}"
            raise ResultError(self.update, f"leaves {left} as self.weights, not {self.layout.size} numbers")
        self.weights = weights.astype(np.float64, copy=False)

    def _finish_update(self, before: NDArray[np.float64]) -> None:
        """Apply the layers; keep the old weights where later replies to the new ones could not count."""
        states, size = [layer.state_dict() for layer in self.layers], largest(self.weights)
        if self.layers and size <= MAX_RESULT:  # False for NaN
            for layer in self.layers:
                self.weights = layer.apply(before, self.weights, self.round, self.lag)
            size = largest(self.weights)
        if not size <= MAX_RESULT:
            self.weights = before
            for layer, state in zip(self.layers, states, strict=True):
                layer.load_state_dict(state)
            reason = f"weights as large as {size:.1e}"
            self.report.events.append({"event": "discarded update", "reason": reason})

    def _pack(self) -> FlatParameters:
        return self.pack(self.weights.astype(self.layout.dtype))

    def _divided(self, vector: FloatVector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights, shape (M,), and the buffers of one vector, in float64."""
        size = self.layout.size
        return vector[:size].astype(np.float64), vector[size:].astype(np.float64)
