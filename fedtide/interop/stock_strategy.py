"""Strategies that were written for Flower alone: any of them runs under the traces, beside our methods.

Their inputs, the questions they are asked and the use of their answers are decided here. Participation, the
replies that count and the round's record are as for every method: to the engine they are one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DPFedAvgFixed,
    Strategy,
)

from fedtide.base.allowed import REQUIRED, as_options
from fedtide.base.contract import SGD, FitConfig, fit
from fedtide.base.errors import SettingsError
from fedtide.interop.stock_state import Attributes
from strategies import FlatParameters, FlexibleStrategy, Options, Replies
from strategies.core.parameters import is_number, read_parameters
from strategies.core.replies import FitResult, ReplyTable
from strategies.core.roster import Clients
from strategies.core.round import Task
from strategies.core.state import StateDict
from strategies.fedprox import FedProx

Failures = list[tuple[ClientProxy, FitRes] | BaseException]

# Unless options say otherwise, one client is enough for a round, and evaluation happens at the server.
DEFAULTS = {
    "fraction_evaluate": 0.0,
    "min_fit_clients": 1,
    "min_evaluate_clients": 1,
    "min_available_clients": 1,
}
# What an algorithm raises where it has too few replies; any other error is one of its code.
OF_TOO_FEW = (ArithmeticError, AssertionError, IndexError, ValueError)
NO_UPDATE = "no update"  # the event of a round in which it could use none of the replies
# Differential privacy that rests on what clients do.
CLIPPED_BY_CLIENTS = (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DPFedAvgFixed,
)
MU = "proximal_mu"  # what Flower's FedProx sends; our clients have a rule for it


class StockStrategy(FlexibleStrategy):
    """Base of the methods that `stock_type` makes of other strategies.

    The strategy chooses among `clients_per_round` of the available clients, and gets the replies that count.
    What it keeps besides the weights are its attributes (`fedtide.interop.stock_state`).
    """

    saved = ("attributes",)
    takes_layers = takes_initial_model = False
    factory: ClassVar[Callable[..., Strategy]]
    parameters: ClassVar[Mapping[str, inspect.Parameter]]
    own_options: ClassVar[type[Options]]

    @classmethod
    def options_type(cls) -> type[Options]:
        """Return the class of the options: the general ones, and the parameters of the constructor."""
        return cls.own_options

    def setup(self) -> None:
        """Make the strategy with the parameters that the run can give."""
        given = {field.name: getattr(self.options, field.name) for field in fields(self.options)}
        given |= {
            "initial_parameters": self.coordinator.sent,
            "evaluate_fn": self.evaluate_fn,
            "on_fit_config_fn": self._common,
            "on_evaluate_config_fn": self._common,
            "fit_metrics_aggregation_fn": lambda metrics: {},
            "evaluate_metrics_aggregation_fn": _mean_metrics,
        }
        try:
            self.stock = self.factory(**{name: given[name] for name in self.parameters if name in given})
        except ValueError as error:
            raise SettingsError(f"strategy {type(self).__name__}: {error}") from None
        if not isinstance(self.stock, Strategy) or isinstance(self.stock, FlexibleStrategy):
            made = type(self.stock).__name__
            raise SettingsError(f"strategy {type(self).__name__} gives a {made}, not a strategy of Flower")
        if isinstance(self.stock, CLIPPED_BY_CLIENTS):
            raise SettingsError(
                f"strategy {type(self).__name__}: clients here do not clip their updates, so nothing would "
                "be private; take DifferentialPrivacyServerSideFixedClipping, or ...AdaptiveClipping"
            )
        self.attributes = Attributes(self.stock)
        self._has_begun = False
        self._tasks: dict[int, Task] = {}
        self._shared: Mapping[str, Scalar] = {}
        self._results: dict[int, tuple[ClientProxy, FitRes]] = {}
        self._failures: Failures = []

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the initial weights, which the strategy may replace by its own."""
        own = None if self._has_begun else self.stock.initialize_parameters(client_manager)
        if own is not None:
            self.coordinator.adopt(own)
        return self.coordinator.sent

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._has_begun = True

    # A round

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        self._manager: Any = client_manager  # a `TraceClientManager` of the engine, which stands above
        return super().configure_fit(server_round, parameters, client_manager)

    def select(self, available: Clients) -> Clients:
        self._tasks, self._shared, self.rule = {}, {}, SGD  # of this round
        offered = super().select(available)
        with self._noting("nobody asked", not len(offered)):
            manager = self._manager.limited_to(offered)
            self._read_instructions(self.stock.configure_fit(self.round, self.coordinator.sent, manager))
        return np.array(sorted(self._tasks), np.intp)

    def shared_task(self) -> Task:
        """Return the scalars that the strategy sends besides the weights."""
        return Task(scalars=self._shared)

    def task(self, client: int) -> Task | None:
        """Return the task of this client alone, if it has one."""
        task = self._tasks[client]
        return None if task == self.shared_task() else task

    def aggregate_fit(
        self, server_round: int, results: ReplyTable | list[FitResult], failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        listed = results if isinstance(results, list) else results.as_flower(self._manager.proxy)
        self._results = {int(proxy.cid): (proxy, result) for proxy, result in reversed(listed)}  # the first
        self._failures = failures
        return super().aggregate_fit(server_round, results, failures)

    def update(self, replies: Replies) -> None:
        """Take over the weights that the strategy returns, if it does."""
        counted = [self._results.pop(client) for client in replies.clients.tolist()]
        failures = [*self._failures, *self._results.values()]
        with self._noting(NO_UPDATE, not counted):
            parameters, metrics = self.stock.aggregate_fit(self.round, counted, failures)
            if parameters is not None:
                self.weights = self._read_weights(parameters).astype(np.float64)
            self.report.measured |= {key.replace("-", "_"): value for key, value in metrics.items()}

    def empty_round(self) -> None:
        """Tell the strategy that none of the clients that it asked has replied."""
        if len(self.selected):
            self.update(Replies.none(self.layout.size))

    # Evaluation

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate as the strategy does, or if it does not, by `evaluate_fn`."""
        result = self.stock.evaluate(server_round, parameters)
        return super().evaluate(server_round, parameters) if result is None else result

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        asked = self.stock.configure_evaluate(server_round, parameters, client_manager)
        common = self._common(server_round)
        return [(proxy, EvaluateIns(ins.parameters, {**common, **ins.config})) for proxy, ins in asked]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        with self._noting("no evaluation", not results):
            return self.stock.aggregate_evaluate(server_round, results, failures)
        return None, {}

    # Details

    def _common(self, server_round: int) -> dict[str, Scalar]:
        """Return what our clients need to know in every round; other clients may ignore it."""
        return self._plain_task.to_wire()

    @property
    def _plain_task(self) -> FitConfig:
        return replace(self.coordinator.config(self.shared_task()), rule=SGD.name, own={})

    def _read_instructions(self, asked: list[tuple[ClientProxy, FitIns]]) -> None:
        """Make tasks of a round's instructions; with mu, clients do the local steps of FedProx."""
        plain, proximal = self._plain_task, any(ins.config.get(MU) for _, ins in asked)
        common, tasks = plain.to_wire(), {}
        own = {id(ins.parameters): ins.parameters for _, ins in asked}
        own.pop(id(self.coordinator.sent), None)
        starts = {
            key: FlatParameters(self._read_weights(parameters), self.layout)
            for key, parameters in own.items()
        }
        for proxy, instruction in asked:
            config = FitConfig.from_wire({**common, **instruction.config})
            rate, scalars = config.learning_rate, dict(config.own)
            if replace(config, learning_rate=plain.learning_rate, own={}) != plain:
                sent = ", ".join(sorted(instruction.config.keys() & common.keys() - {fit.LEARNING_RATE}))
                raise ValueError(f"only the learning rate may differ from the run's, not {sent}")
            if proximal:
                scalars["mu"] = scalars.get(MU, 0.0)
            own_rate = None if rate == plain.learning_rate else rate
            start = starts.get(id(instruction.parameters))
            tasks[int(proxy.cid)] = Task(scalars=scalars, learning_rate=own_rate, weights=start)
        self._tasks, self._shared = tasks, next((task.scalars for task in tasks.values()), {})
        self.rule = FedProx.rule if proximal else SGD

    def _read_weights(self, parameters: Parameters) -> Any:
        """Return weights as a vector, shape (M,); refuse what clients could not start from."""
        vector, extra = read_parameters(parameters, self.wire)
        if extra:
            raise ValueError(f"{len(extra)} arrays more than the model has")
        weights = vector[: self.layout.size]  # buffers are averaged as with every method
        if not np.isfinite(weights).all():
            raise ValueError("weights that are not finite")
        return weights

    @contextmanager
    def _noting(self, event: str, nobody: bool) -> Iterator[None]:
        """Note an error that the strategy raises for want of clients; the run then continues."""
        try:
            yield
        except Exception as error:
            if not (nobody or isinstance(error, OF_TOO_FEW)):
                raise
            self.report.events.append({"event": event, "reason": f"{type(error).__name__}: {error}"})


@lru_cache
def stock_type(name: str, factory: Callable[..., Strategy]) -> type[StockStrategy]:
    """Make a method of a strategy: of its class, or of a function that returns it.

    Parameters of type int, float, bool and str are options; those with the name of a general one, such as
    `seed`, get its value. ValueError: one is required that neither an option nor the run can give.
    """
    parameters = _parameters(factory)
    general = {field.name for field in fields(Options)}
    from_run = {"initial_parameters", "evaluate_fn", "on_fit_config_fn", "on_evaluate_config_fn"}
    from_run |= {"fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn"}
    options = as_options(p for key, p in parameters.items() if key not in general | from_run)
    known = general | from_run | {option.parameter for option in options.values()}
    if missing := [key for key, p in parameters.items() if p.default is REQUIRED and key not in known]:
        raise SettingsError(
            f"strategy {name} needs {missing[0]!r}, which no option can set; "
            "name a function that returns the strategy"
        )
    own = []
    for option in options.values():
        default = DEFAULTS.get(option.parameter, option.default)
        kwargs = {} if default is REQUIRED else {"default": default}
        own.append((option.parameter, option.kind, field(**kwargs)))
    title = getattr(factory, "__name__", name)
    made = make_dataclass(f"{title}Options", own, bases=(Options,), frozen=True, kw_only=True)
    members = {"factory": staticmethod(factory), "parameters": parameters, "own_options": made}
    return type(title, (StockStrategy,), {**members, "__module__": __name__, "__doc__": factory.__doc__})


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor, also those that it passes on to its base as **kwargs."""
    found: dict[str, inspect.Parameter] = {}
    classes = factory.__mro__ if isinstance(factory, type) else (factory,)
    for cls in classes:
        if isinstance(cls, type) and "__init__" not in vars(cls):
            continue
        own = [*inspect.signature(cls).parameters.values()]
        found = {p.name: p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} | found
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def _mean_metrics(reported: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
    """Return the means of the metrics over the clients that report them, weighted by their examples."""
    names = dict.fromkeys(name for _, own in reported for name, value in own.items() if is_number(value))
    means: dict[str, Scalar] = {}
    for name in names:
        known = [(n, float(own[name])) for n, own in reported if is_number(own.get(name))]
        if total := sum(n for n, _ in known):
            means[name] = sum(n * value for n, value in known) / total
    return means
