"""A round: what clients are asked to do, the tasks that are still to be answered, and what came of it.

A client that is not done at the end of a round may answer in a later one. It then started from an older model
than those that answer on time: its update is the difference to what it was sent for that task.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from flwr.common import EvaluateIns, FitIns, Parameters, Scalar, log
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.base.contract import FitConfig, Rule
from strategies.core.parameters import FlatParameters, Layout
from strategies.core.roster import Clients
from strategies.core.state import StateDict, Stateful, take

Instruction = TypeVar("Instruction", FitIns, EvaluateIns)


@dataclass(frozen=True)
class Task:
    """What a method sends besides the weights, to all clients of a round or to one of them.

    None stands for what all clients of the round have: in a task for all, its learning rate, its local steps
    and the global weights; in that of one client, what all get.
    """

    arrays: tuple[NDArray[Any], ...] = ()  # of shape (M,), or (1,)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)  # by their names on the wire
    learning_rate: float | None = None
    local_steps: int | None = None
    last_accepted: int | None = None  # see `FitConfig`
    farewell: bool = False  # whether the client is asked for its state instead of training
    weights: FlatParameters | None = None  # to start from
    rule: Rule | None = None  # of the local steps; None: the method's

    def added_to(self, config: FitConfig) -> FitConfig:
        """Return a client's configuration: the common one with what is its own."""
        if self.local_steps is not None:
            config = replace(config, local_steps=self.local_steps, local_epochs=0)
        return replace(
            config,
            learning_rate=config.learning_rate if self.learning_rate is None else self.learning_rate,
            last_accepted=self.last_accepted,
            farewell=self.farewell,
            rule=self.rule.name if self.rule else config.rule,
            own={**config.own, **self.scalars} if self.scalars else config.own,
        )


class RoundInstructions(list[tuple[ClientProxy, Instruction]], Generic[Instruction]):
    """Flower's list of instructions, `FitIns` or `EvaluateIns`, which also tells what they have in common.

    So an engine can send that once: the global weights, the method's arrays and the configuration for all
    clients. `own` has, by name, the tasks and configurations of the clients that have one of their own.
    Nobody waits any more for the clients at work whose names are in `withdrawn`, as they have left the
    objective, or in `stopped`, as their tasks have become too old.
    """

    def __init__(
        self,
        kind: Callable[[Parameters, dict[str, Scalar]], Instruction],
        weights: FlatParameters,
        shared: Sequence[NDArray[Any]],
        config: FitConfig,
    ) -> None:
        super().__init__()
        self.weights, self.shared, self.config = weights, tuple(shared), config
        self.own: dict[str, tuple[Task, FitConfig]] = {}
        self.withdrawn: list[str] = []
        self.stopped: list[str] = []
        self._kind: Callable[[Parameters, dict[str, Scalar]], Instruction] = kind
        common = FlatParameters(weights.vector, weights.layout, self.shared) if self.shared else weights
        self._common: Instruction = kind(common, config.to_wire())
        self._starts: dict[int, FlatParameters] = {}  # several clients may start from the same model

    def add(self, proxy: ClientProxy, task: Task | None) -> Task | None:
        """Ask one more client; without a task of its own it gets the common instruction.

        Return the task, in which the model's buffers follow weights of its own.
        """
        if task is None:
            self.append((proxy, self._common))
            return None
        wire, own = self.weights.layout, task.weights
        if own is not None and wire.num_buffers:
            if id(own) not in self._starts:
                self._starts[id(own)] = wire.pack(own.vector, self.weights.buffers)
            task = replace(task, weights=self._starts[id(own)])
        self.add_own(proxy, task, task.added_to(self.config))
        return task

    def add_own(self, proxy: ClientProxy, task: Task, config: FitConfig) -> None:
        """Ask one more client, whose configuration may be that of another round."""
        self.own[proxy.cid] = task, config
        parameters, start = self._common.parameters, task.weights or self.weights
        if task.arrays or task.weights:
            parameters = FlatParameters(start.vector, start.layout, self.shared + task.arrays)
        self.append((proxy, self._kind(parameters, config.to_wire())))


def farewells_in(instructions: Sequence[tuple[ClientProxy, FitIns]]) -> set[str]:
    """Return the names of the clients that are asked to hand in their state, not to train."""
    own = instructions.own if isinstance(instructions, RoundInstructions) else {}
    return {name for name, (_, config) in own.items() if config.farewell}


class Sent(NamedTuple):
    """What a client was sent for a task."""

    round: int
    weights: FlatParameters  # to start from
    learning_rate: float  # of the round
    version: int  # how often the global weights had changed before
    local_steps: int | None = None  # those of its task; None: those of the options

    def with_own(self, task: Task) -> Sent:
        """Return what a client with a task of its own was sent."""
        if task.weights is None and task.local_steps is None:
            return self
        steps = self.local_steps if task.local_steps is None else task.local_steps
        return self._replace(weights=task.weights or self.weights, local_steps=steps)


class OpenTasks(Stateful):
    """Tasks without an answer: what each client was sent for its last one."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self.round = layout, 0  # the round that is open; 0: none
        self._sent: dict[int, Sent] = {}

    def begin(self, server_round: int, awaited: Clients) -> None:
        """Begin a round, and forget the tasks of all clients that are not awaited."""
        self.round = server_round
        for client in self._sent.keys() - awaited.tolist():
            del self._sent[client]

    def end(self) -> None:
        """End the round: nobody has a task to answer until the next one begins."""
        self.round = 0

    def ask(self, clients: Iterable[int], sent: Sent) -> None:
        """Note what some clients are sent in the current round."""
        self._sent.update(dict.fromkeys(clients, sent))

    def hand_over(self, client: int, other: int) -> None:
        """Let another client answer a client's task."""
        if client in self._sent:
            self._sent[other] = self._sent.pop(client)

    def of(self, client: int | None, server_round: int) -> Sent | None:
        """Return what a client was sent for the task that it has to answer; None: there is none."""
        return None if client is None or server_round != self.round else self._sent.get(client)

    def older_than(self, version: int, clients: Clients) -> Clients:
        """Return those of the clients that were sent older weights than this version for their tasks."""
        tasks = [self._sent.get(client) for client in clients.tolist()]
        return clients[[task is not None and task.version < version for task in tasks]]

    def state_dict(self) -> StateDict:
        """Return what was sent, by client, shape (K,); the weights of each model once, as rows."""
        sent = [*self._sent.values()]
        models = {id(task.weights): task.weights for task in sent}
        position = {key: row for row, key in enumerate(models)}
        vectors = [model.vector for model in models.values()]
        return {
            "clients": np.array([*self._sent], np.int64),
            "rounds": np.array([task.round for task in sent], np.int64),
            "learning_rates": np.array([task.learning_rate for task in sent], np.float64),
            "versions": np.array([task.version for task in sent], np.int64),
            "local_steps": np.array([task.local_steps or 0 for task in sent], np.int64),
            "models": np.array([position[id(task.weights)] for task in sent], np.int64),
            "weights": np.array(vectors, self._layout.dtype).reshape(len(vectors), self._layout.size),
        }

    def load_state_dict(self, state: StateDict) -> None:
        vectors = [np.array(row, self._layout.dtype) for row in take(state, "weights")]
        models = [FlatParameters(vector, self._layout) for vector in vectors]
        keys = ("clients", "rounds", "models", "learning_rates", "versions", "local_steps")
        rows = zip(*(take(state, key).tolist() for key in keys), strict=True)
        self.round = 0
        self._sent = {
            client: Sent(task, models[model], rate, version, steps or None)
            for client, task, model, rate, version, steps in rows
        }


LONGEST = 200  # characters of a name or a reason in a report
MAX_WARNINGS = 1000  # a client may give another reason in every round


def shortened(text: str) -> str:
    """Return text that a client may have written as one printable line of bounded length."""
    line = " ".join(text[: 2 * LONGEST].split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(text) <= 2 * LONGEST and len(line) <= LONGEST else f"{line[:LONGEST]}..."


class ClientFailure(Exception):  # noqa: N818 - an event of the round, passed on as Flower passes failures
    """A client that was asked and did not return a valid reply.

    `seconds` is how long it took until that was known; NaN: not measured.
    """

    def __init__(self, client: str, reason: str, seconds: float = math.nan) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason, self.seconds = client, reason, seconds


@dataclass
class RoundReport:
    """The outcome of one round, complete when `aggregate_fit` has returned.

    A reply in `late` answers a task of an earlier round and counted: its `client`, the round of its `task`,
    and `lag`, how often the global weights have changed since then. What did not count is in `rejected`;
    `discarded` has in addition what was lost with the replies whose lag was too large.
    """

    learning_rate: float = 0.0  # the clients'
    active: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # ascending
    planned: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # their E_k, (K,)
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # their s_k, (K,)
    incomplete: int = 0  # how many of them did fewer steps
    rejected: list[tuple[str, str]] = field(default_factory=list)  # name of the client, and reason
    diverged: bool = False  # one of these had weights that are not finite, or too large
    late: list[dict[str, int]] = field(default_factory=list)
    discarded: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # arrivals, departures, decisions
    measured: dict[str, Any] = field(default_factory=dict)  # the method's own, by names in the round's record

    def reject(self, name: str, reason: str) -> None:
        """Note a reply that does not count."""
        self.rejected.append((shortened(name), shortened(reason) or "without a reason"))

    def counts(self) -> dict[str, int]:
        """Return how many replies did not count for each kind of reason, as fit metrics."""
        if not self.rejected:
            return {}
        found = Counter(kind(reason) for _, reason in self.rejected)
        return {f"rejected: {reason}": count for reason, count in sorted(found.items())}

    def warn(self, server_round: int, logged: set[tuple[str, str]]) -> None:
        """Name the replies that do not count in Flower's log, once for each client and kind of reason."""
        for client, reason in self.rejected:
            if is_news(client, reason, logged):
                message = "round %d: the reply of client %s does not count: %s"
                log(WARNING, message, server_round, client, reason)


def is_news(name: str, reason: str, logged: set[tuple[str, str]]) -> bool:
    """Whether this kind of reason has not been logged of somebody yet, and is noted as logged from now on."""
    warning = name, kind(reason)
    if warning in logged or len(logged) >= MAX_WARNINGS:
        return False
    logged.add(warning)
    return True


def kind(reason: str) -> str:
    """Return a reason with an N for each number: what differs in them only is the same mistake."""
    return re.sub(r"\d[\w.+-]*", "N", reason)
