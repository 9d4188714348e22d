"""Our methods as strategies of Flower's Message API: `fedtide.strategy("mimic")` in place of `FedAvg()`.

Messages are those of Flower's FedAvg, so that an app's clients stay what they are. A method that needs a part
of its own at the clients sends it in a second record, which `fedtide.client.Task` reads and follows.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import FitIns, FitRes
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

import strategies
from fedtide.base.allowed import did_you_mean
from fedtide.base.contract import metrics
from fedtide.base.errors import SettingsError
from fedtide.devices.flower_compat import ErrorCode
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.flower.messages import RATES, NamedArrays, with_the_same_metrics
from fedtide.flower.nodes import AppNodes
from fedtide.flower.tasks import AppTasks
from strategies import FlexibleStrategy, Layout, Options
from strategies.core.app import FlowerArguments, is_plain
from strategies.core.layers import Layer
from strategies.core.parameters import FlatParameters
from strategies.core.round import ClientFailure, is_news
from strategies.core.state import nested, within

PERSONAL = ("apfl", "pfedme")  # rules that train a second model, which no training loop of an app does
FLOWERS = inspect.signature(FedAvg).parameters.keys()  # its arguments
UNREADABLE = (ValueError, KeyError, TypeError, IndexError)
# Errors by which Flower says that a node is not there; all others are those of the app.
AWAY = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

log = logging.getLogger("flwr")


class MethodStrategy(FedAvg):
    """A federated method for clients that come and go, in place of Flower's `FedAvg`.

    A node that fails, does not answer in time or is offline takes no part in the round; a reply that cannot
    be used is named once in Flower's log, with the reason. A node is a client, called by its number, or by
    `client-id` or `partition-id` where its replies say so: it is then the same client under another number.

    Parameters
    ----------
    method
        Name of the method, one of `strategies.STRATEGIES`, or the class of one of your own.
    buffers
        Names of arrays, or the ends of them, that are averaged and nothing else, besides `running_mean` and
        `running_var`. Arrays that are not floating point are sent as they are at first.
    learning_rate
        eta of the clients' steps, where `train_config` does not say it as `lr`, `learning-rate` or
        `learning_rate`. With `lr_schedule`, the rate of the round is sent there.
    client_rule
        What happens if a client does not say that it has followed the method's rule, where that is not plain
        training: `checked` ends the run, `trust` believes it.
    trace
        A trace of `traces.TRACES`, such as `markov:on=5,off=5`: nodes are asked to train only in the rounds
        in which it has them there, and their replies are dropped where it loses them. Empty: all are there.
    checkpoint
        A folder where the state is kept after each round; `start` goes on from what it finds there.
    **arguments
        Those of `FedAvg`, and options: the method's own, and those of all methods, such as `select`,
        `server_opt`, `lr_schedule` and `departure`, see `strategies.make`. `clients_per_round` is a number in
        place of `fraction_train`.

    Raises
    ------
    SettingsError
        An option is unknown or not allowed, or the method cannot be used with clients of an app.
    """

    def __init__(
        self,
        method: str | type[FlexibleStrategy],
        *,
        buffers: Sequence[str] = (),
        learning_rate: float | None = None,
        client_rule: Literal["checked", "trust"] = "checked",
        trace: str = "",
        checkpoint: str | Path = "",
        **arguments: Any,
    ) -> None:
        super().__init__(**{key: value for key, value in arguments.items() if key in FLOWERS})
        self.options = {key: value for key, value in arguments.items() if key not in FLOWERS}
        _check_arguments(arguments, self.options)
        self.method, self.buffers, self.learning_rate = method, tuple(buffers), learning_rate
        self.name = method if isinstance(method, str) else method.__name__
        self.client_rule = client_rule
        self.num_rounds = self.done = 0  # rounds in all, and before this start
        self._is_started = False  # otherwise a wrapper calls what `start` would call
        one = FlatParameters(np.zeros(1, np.float32), _ONE_WEIGHT)
        self.strategy = self._made(one, learning_rate)  # or refused
        self.nodes = AppNodes(trace, self.strategy.options.seed)
        self._store = CheckpointStore(Path(checkpoint)) if checkpoint else None
        self._tasks: AppTasks | None = None  # none before the first round
        self._arrays, self._parameters = ArrayRecord(), FlatParameters(np.empty(0), _ONE_WEIGHT)  # the same
        self._asked: dict[int, tuple[ClientProxy, FitIns]] = {}
        self._sent: list[Message] = []
        self._logged: set[tuple[str, str]] = set()
        self._any_counted = False  # whether a reply ever has

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train as `Strategy.start` does, or go on from the checkpoint.

        What `evaluate_fn` and clients evaluate, and what is returned, is the method's model, which some
        methods do not send: see `FlexibleStrategy.evaluated`.
        """
        self.num_rounds, train_config, self._is_started = num_rounds, train_config or ConfigRecord(), True
        # a second start is a second training
        self._tasks, self.done, self._any_counted = None, 0, False
        arrays = self._resumed(initial_arrays, train_config)
        done, of_method = self.done, None
        if evaluate_fn is not None:

            def of_method(number: int, arrays: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(number + done, self._evaluated(arrays))

        rounds = max(0, num_rounds - done)
        result = super().start(grid, arrays, rounds, timeout, train_config, evaluate_config, of_method)
        for found in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            shifted = {number + done: value for number, value in found.items()}
            found.clear()
            found.update(shifted)
        result.arrays = self._evaluated(result.arrays if rounds else arrays)
        self._is_started = False
        return result

    def summary(self) -> None:
        """Log the method and what `FedAvg` logs."""
        log.info("\t├──> Method: %s %s", self.name, self.options or "")
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Wait for nodes, select some and give them their tasks."""
        if self.fraction_train == 0.0:
            return []
        config["server-round"] = server_round = server_round + self.done
        least = 1 if "clients_per_round" in self.options else self.min_train_nodes
        number = self.nodes.connect(grid, max(self.min_available_nodes, least, 1))
        tasks = self._tasks or self._begin(arrays, config)
        self._follow_rate(tasks, config)
        if arrays is not self._arrays:  # changed outside, as by differential privacy
            self._arrays, self._parameters = arrays, tasks.names.parameters(arrays)
        tasks.begin(self._parameters, self._arrays)
        self.nodes.begin(server_round)
        instructions = self.strategy.configure_fit(server_round, self._parameters, self.nodes.manager)
        self._asked = {proxy.node_id: (proxy, ins) for proxy, ins in instructions}
        log.info("configure_train: Sampled %s nodes (out of %s)", len(self._asked), number)
        self._sent = [tasks.message(node, ins, config) for node, (_, ins) in self._asked.items()]
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the weights from the replies; clients that were asked and did not reply are failures."""
        tasks = self._tasks
        if tasks is None:
            return None, None
        server_round += self.done
        waiting, why = dict(self._asked), dict.fromkeys(self._asked, "no reply in time")
        results: list[tuple[ClientProxy, FitRes]] = []
        contents: dict[str, RecordDict] = {}
        unusable: list[tuple[str, str]] = []
        known = ((sent.metadata.message_id, sent.metadata.dst_node_id) for sent in self._sent)
        to = {message: node for message, node in known if message}
        for reply in replies:  # errors of the SuperLink do not name the node
            node = to.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if node not in waiting or node in self.nodes.lost:
                continue
            proxy, ins = waiting[node]
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason or "failed")
                result = tasks.result(reply.content, node, ins)
                self.nodes.identify(node, proxy, result, self.strategy)
            except SettingsError:
                raise
            except UNREADABLE as reason:
                why[node] = _last_line(str(reason))
                if not (reply.has_error() and reply.error.code in AWAY):
                    unusable.append((proxy.cid, why[node]))
                continue
            if result.metrics.get(metrics.RESYNC):
                self._tell(server_round, node, f"has lost what it keeps for {self.name}, and starts anew")
            del waiting[node]
            results.append((proxy, result))
            contents[proxy.cid] = reply.content
        log.info("aggregate_train: Received %s results and %s failures", len(results), len(waiting))
        failures: list[Any] = []
        for node, (proxy, _) in waiting.items():
            failures.append(ClientFailure(proxy.cid, why[node]))
            self._tell(server_round, node, f"takes no part: {why[node]}")
        parameters, numbers = self.strategy.aggregate_fit(server_round, results, failures)
        if parameters is not self._parameters:
            self._parameters = cast(FlatParameters, parameters)
            self._arrays = tasks.names.record(self._parameters.vector)
        if self._store:
            try:
                self._store.save(server_round, self._state())
            except OSError as error:
                log.warning("round %d: not kept, the checkpoint before it stays: %s", server_round, error)
        active = {*self.strategy.report.active.tolist()}
        unusable += self.strategy.report.rejected
        self._any_counted |= bool(active)
        if len(unusable) > 1 and not self._any_counted:  # one may be broken
            raise SettingsError(f"{self.name}: no reply counts: that of {': '.join(unusable[0])}")
        counted = [found for name, found in contents.items() if self.strategy.roster.find(name) in active]
        if self.train_metrics_aggr_fn is aggregate_metricrecords:
            counted = with_the_same_metrics(counted)
        of_clients = self.train_metrics_aggr_fn(counted, self.weighted_by_key) if counted else None
        numbers.pop(metrics.TRAIN_LOSS, None)  # the clients' own numbers have it, by their name
        return self._arrays, MetricRecord({**cast(dict[str, int], numbers), **(of_clients or {})})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to evaluate the method's model, as `FedAvg` does."""
        return super().configure_evaluate(server_round + self.done, self._evaluated(arrays), config, grid)

    # Details

    def _made(self, initial: FlatParameters, rate: float | None) -> FlexibleStrategy:
        """Make the method; `rate` is the clients', None: not known."""
        general: dict[str, Any] = {"num_rounds": self.num_rounds, "client_rule": self.client_rule}
        general |= {} if rate is None else {"learning_rate": rate}
        if "clients_per_round" not in self.options:
            general |= {"fraction_fit": self.fraction_train, "min_fit_clients": self.min_train_nodes}
        made = strategies.make(self.method, initial, **{**general, **self.options})
        if made.rule.name in PERSONAL:
            raise SettingsError(
                f"{self.name}: its clients train a personal model beside the global one, which the training "
                "loop of an app does not; use the clients of fedtide (clients.app:app)"
            )
        if getattr(made.options, "elasticity", 0):
            raise SettingsError(
                f"{self.name}: the clients of an app cannot compute Fisher information; give elasticity=0"
            )
        return made

    def _begin(self, arrays: ArrayRecord, config: ConfigRecord) -> AppTasks:
        """Make the method for an app's arrays, with the rate of its clients."""
        names = NamedArrays.of(arrays, self.buffers)
        rate_key = next((key for key in RATES if key in config), "")
        rate = cast(float, config[rate_key]) if rate_key else self.learning_rate
        self.strategy = self._made(names.parameters(arrays), rate)
        mu = {"mu": getattr(self.strategy.options, "mu", 0.0)}
        if not self._is_started and not self._sends_its_model():
            raise SettingsError(
                f"{self.name}: inside another strategy, what is evaluated and returned would be the weights "
                "that clients start from, not its model"
            )
        if rate is None and (not is_plain(self.strategy.rule.name, mu) or "lr_schedule" in self.options):
            raise SettingsError(
                f"{self.name} needs the clients' learning rate: put it into train_config as 'lr', or give "
                "fedtide.strategy a learning_rate"
            )
        steps = self.options.get("local_steps", Options.local_steps)
        self._tasks = AppTasks(
            self.name,
            names,
            self.weighted_by_key,
            self.arrayrecord_key,
            self.configrecord_key,
            rate_key,
            rate,
            0 if "local_epochs" in self.options else steps,
            self.strategy.knows_steps,
            self.client_rule == "checked",
        )
        self._arrays = arrays
        self._parameters = cast(FlatParameters, self.strategy.initialize_parameters(self.nodes.manager))
        return self._tasks

    def _follow_rate(self, tasks: AppTasks, config: ConfigRecord) -> None:
        """Go on with the rate that the app has written to its `train_config` between two rounds."""
        if tasks.rate_key and (rate := cast(float, config.get(tasks.rate_key, tasks.rate))) != tasks.rate:
            self.strategy.options = replace(self.strategy.options, learning_rate=rate)
            tasks.rate = rate

    def _resumed(self, arrays: ArrayRecord, config: ConfigRecord) -> ArrayRecord:
        """Take over the state of the checkpoint, if there is one; return the arrays to start from."""
        if not self._store:
            return arrays
        self._store.folder.mkdir(parents=True, exist_ok=True)
        if (found := self._store.load()) is None:
            return arrays
        for said in found.damaged:
            log.warning("checkpoint: %s", said)
        if (was := found.state.get("training")) != (now := self._training):
            raise SettingsError(f"checkpoint: the training that is kept there is {was}, not {now}")
        tasks = self._begin(arrays, config)
        try:
            self.strategy.load_state_dict(within("method", found.state))
        except ValueError as error:
            raise SettingsError(f"checkpoint {self._store.folder}: {error}") from None
        self.nodes.traced = found.state.get("traced", [])
        self.nodes.names = dict(zip(found.state["nodes"], found.state["names"], strict=True))
        self.done, self._any_counted = found.round, self.strategy.version > 0
        self._parameters = cast(FlatParameters, self.strategy.initialize_parameters(self.nodes.manager))
        self._arrays = tasks.names.record(self._parameters.vector)
        log.info("going on after round %d, with the state of %d clients", self.done, len(self.nodes.names))
        return self._arrays

    def _state(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        known = {"nodes": [*self.nodes.names], "names": [*self.nodes.names.values()]}
        known |= {"traced": self.nodes.traced}
        return {**nested("method", self.strategy.state_dict()), **known, "training": self._training}

    @property
    def _training(self) -> str:
        """The method with its options, as text."""
        shown = {key: getattr(value, "__qualname__", value) for key, value in self.options.items()}
        return " ".join([self.name, *(f"{key}={value}" for key, value in sorted(shown.items()))])

    def _evaluated(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the method's model where clients are sent these arrays."""
        tasks, method = self._tasks, self.strategy
        if tasks is None or self._sends_its_model():
            return arrays
        sent = self._parameters if arrays is self._arrays else tasks.names.parameters(arrays)
        return tasks.names.record(tasks.names.layout.flatten(method.model(sent)))

    def _sends_its_model(self) -> bool:
        """Whether the weights that clients start from are those that are evaluated."""
        kept = [type(layer).evaluated is Layer.evaluated for layer in self.strategy.layers]
        return type(self.strategy).evaluated is FlexibleStrategy.evaluated and all(kept)

    def _tell(self, server_round: int, node: int, said: str) -> None:
        """Log something about a node, once for each node and kind of it."""
        if is_news(str(node), said, self._logged):
            log.warning("round %d: node %d %s", server_round, node, said)


def _last_line(reason: str) -> str:
    """Return the last line of why a node has failed, which names the exception."""
    return (reason.strip().splitlines() or ["failed"])[-1]


def _check_arguments(arguments: Collection[str], options: Collection[str]) -> None:
    """Refuse what is no option of a method, but close to an argument of Flower's, or without effect here."""
    if "clients_per_round" in options and (both := {"fraction_train", "min_train_nodes"} & {*arguments}):
        raise SettingsError(f"give either clients_per_round or {min(both)}: each says how many are asked")
    own = {field.name for field in fields(Options)}
    for key in options:
        if key == "initial_parameters":
            raise SettingsError("initial_parameters: give the initial arrays to start()")
        if key in FlowerArguments.__annotations__:
            raise SettingsError(
                f"{key} is an argument of Flower's classic FedAvg; those of its Message API are "
                f"{', '.join(FLOWERS)}"
            )
        if key not in own and (hint := did_you_mean(key, FLOWERS)):
            raise SettingsError(f"there is no argument {key!r}{hint}")
        if key == "round_ends":
            raise SettingsError(
                "round_ends is for fedtide's own engine: Flower's rounds wait for all replies"
            )


_ONE_WEIGHT = Layout.of([np.zeros(1, np.float32)])
