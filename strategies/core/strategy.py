"""The base of every strategy: a Flower `Strategy` for clients that come and go.

A method overrides `update`, and where it needs them `setup`, `select`, `shared_task`, `task`, `empty_round`,
`on_arrival` and `on_departure`, and names its state in `saved`; everything about Flower and about whose reply
counts happens here, and in members.py what happens when clients come and go.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from flwr.common import FitIns, FitRes, Parameters, Scalar, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from strategies.core.evaluation import ServerEvaluated
from strategies.core.farewells import Farewells
from strategies.core.interfaces import EvaluateFn, Task
from strategies.core.membership import WithMembers
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters, FloatVector, Layout, read_parameters
from strategies.core.replies import Candidate, Replies, collect, read_reply
from strategies.core.roster import Roster
from strategies.core.state import State, Stateful, take
from strategies.parts.departures import LossTracker


class FlexibleStrategy(WithMembers, Stateful, ServerEvaluated):
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
        See `Options` and the method's own subclass of it.

    Attributes
    ----------
    weights
        Global weights in float64, shape (M,); clients get them in the type of `initial_parameters`.
    rejected
        Replies of the last round that did not count: name of the client and reason.
    active
        Clients whose replies counted in the last round.
    incomplete
        How many of them did fewer steps than planned.
    events
        Arrivals, departures and decisions of the last round, each with the numbers it rests on.
    learning_rate
        Rate of the last round.
    measured
        The method's own numbers of the last round, by the name that they get in its record.
    """

    options_type: ClassVar[type[Options]] = Options
    saved: ClassVar[tuple[str, ...]] = ("weights", "round", "learning_rate", "roster", "losses", "departing")
    reply_arrays: ClassVar[int] = 0  # arrays of the method's own that a client sends after the weights
    rule: str = "sgd"  # how a client does a local step, see clients/rules/__init__.py
    client_memory: bool = False  # whether clients remember something, see clients/memory/handshake.py

    def __init__(
        self,
        initial_parameters: Parameters,
        roster: Roster | None = None,
        evaluate_fn: EvaluateFn | None = None,
        options: Options | None = None,
    ) -> None:
        arrays = parameters_to_ndarrays(initial_parameters)
        self.layout = Layout.of(arrays)
        self.weights: NDArray[np.float64] = self.layout.flatten(arrays).astype(np.float64)
        self.roster = roster if roster is not None else Roster()
        self.evaluate_fn = evaluate_fn
        self.options = options if options is not None else self.options_type()
        self.losses = LossTracker()
        self.round = 0
        self.learning_rate = self.options.learning_rate
        self.selected: NDArray[np.intp] = np.empty(0, np.intp)
        self.active: NDArray[np.intp] = np.empty(0, np.intp)
        self.incomplete = 0
        self.rejected: list[tuple[str, str]] = []
        self.events: list[dict[str, Any]] = []
        self.measured: dict[str, Any] = {}
        self.departing: list[int] = []
        self.farewells = Farewells()
        self._sent = self._pack()
        self.setup()

    # What a method overrides

    def setup(self) -> None:
        """Make the method's own state."""

    @abstractmethod
    def update(self, replies: Replies) -> None:
        """Change `self.weights` and the method's state by the active replies of a round (at least one)."""

    def empty_round(self) -> bool:
        """Act on a round without active replies; whether `self.weights` changed. Default: nothing happens."""
        return False

    def select(self, available: NDArray[np.intp]) -> NDArray[np.intp]:
        """Choose the clients of a round: by the seed, `clients_per_round` of those available, uniformly."""
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

    def decode(self, parameters: Parameters) -> tuple[FloatVector, list[NDArray[Any]]]:
        """Return the local weights, shape (M,), and the method's own arrays that a client sent.

        Raises
        ------
        ValueError
            There are other arrays than the method expects.
        """
        vector, extra = read_parameters(parameters, self.layout)
        if len(extra) != self.reply_arrays:
            count = len(self.layout.shapes)
            raise ValueError(f"{count + len(extra)} arrays where {count + self.reply_arrays} are expected")
        return vector, extra

    # Flower's side

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial weights."""
        return self._sent

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Bring the roster up to date, select clients and tell them what to do."""
        self._begin(server_round, parameters)
        available, proxy = self.meet(client_manager)
        self.selected = self.select(available)
        rate = self.options.lr_schedule(
            self.options.learning_rate, server_round, self.roster.shift, self.options.local_steps
        )
        self.learning_rate = float(rate)
        common = self.shared_task().added_to(FitIns(self._sent, self._config()))
        asked = [
            (proxy(client), self._own_task(client).added_to(common)) for client in self.selected.tolist()
        ]
        return asked + self.farewells.ask(common, self.roster.accepted, proxy)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Update the global weights from the active replies; without any they stay, as a rule."""
        if server_round == self.round:
            results = self.take_leave(server_round, results, self.layout.size)
        candidates = self._check(server_round, results)
        replies = collect(candidates, self._sent.vector)
        self.active = replies.clients
        self.incomplete = int((replies.steps < replies.planned).sum())
        if len(replies):
            self.roster.learn(replies.clients, replies.num_examples)
            self.losses.update(replies)
            self.update(replies)
            self.roster.accept(replies.clients, server_round)
        if len(replies) or (server_round == self.round and self.empty_round()):
            self._sent = self._pack()
        metrics: dict[str, Scalar] = {"active": len(replies), "rejected": len(self.rejected)}
        told = np.isfinite(replies.train_loss)
        if told.any():
            mean = np.average(replies.train_loss[told], weights=replies.num_examples[told])
            metrics["train-loss"] = float(mean)
        return self._sent, metrics

    # Resuming

    def load_state_dict(self, state: State) -> None:
        """Go on from a state: a strategy with the same options then does bit by bit what this one would."""
        if take(state, "weights").shape != self.weights.shape:
            shapes = f"{take(state, 'weights').shape} where {self.weights.shape} are expected"
            raise ValueError(f"the state has weights of shape {shapes}")
        super().load_state_dict(state)
        self._sent = self._pack()

    # Details

    def _begin(self, server_round: int, parameters: Parameters) -> None:
        self.round = server_round
        self.events, self.rejected, self.measured = [], [], {}
        self.active, self.farewells.leaving = np.empty(0, np.intp), []
        # the server, or a wrapper such as differential privacy, may have changed them
        if parameters is not self._sent:
            self.weights = read_parameters(parameters, self.layout)[0].astype(np.float64)
            self._sent = self._pack()

    def _own_task(self, client: int) -> Task:
        task = self.task(client) or Task()
        if not self.client_memory:
            return task
        accepted = int(self.roster.accepted[client])
        return Task(task.arrays, (*task.config, ("last-accepted", accepted)))

    def _check(self, server_round: int, results: list[tuple[ClientProxy, FitRes]]) -> dict[int, Candidate]:
        """Keep the active replies; name the others in `rejected`.

        That a client departs is believed whatever its work is worth, unless the reply is late.
        """
        asked = set(self.selected.tolist()) if server_round == self.round else set()
        candidates: dict[int, Candidate] = {}
        for proxy, result in results:
            client = self.roster.find(proxy.cid)
            try:
                if client is None or client not in asked:
                    raise ValueError("was not asked in this round")
                if client in candidates:
                    raise ValueError("second reply in one round")
                on_time = result.metrics.get("round", server_round) == server_round
                if result.metrics.get("departing") and on_time and client not in self.departing:
                    self.departing.append(client)
                candidates[client] = read_reply(
                    client, result, server_round, self.decode, self.work.planned_steps
                )
            except ValueError as reason:
                self.rejected.append((proxy.cid, str(reason)))
        return candidates

    def _pack(self) -> FlatParameters:
        return FlatParameters(self.weights.astype(self.layout.dtype), self.layout)

    def _config(self) -> dict[str, Scalar]:
        """Return the scalars that all clients of a round get."""
        work = self.work
        amount: dict[str, Scalar] = (
            {"local-epochs": work.local_epochs} if work.local_epochs else {"local-steps": work.local_steps}
        )
        rule: dict[str, Scalar] = (
            {} if self.rule == "sgd" else {"rule": self.rule}
        )  # SGD needs no client of ours
        return {
            "round": self.round,
            "learning-rate": self.learning_rate,
            "batch-size": work.batch_size,
            "model-arrays": len(self.layout.shapes),
            **amount,
            **rule,
        }
