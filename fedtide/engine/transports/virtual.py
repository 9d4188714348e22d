"""Transports to virtual clients: simulated clients that replay a trace."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    ReconnectIns,
)
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.memory.stores import from_bytes, to_bytes
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, Scores
from fedtide.base.contract import FitConfig, metrics
from fedtide.base.errors import PartError
from fedtide.engine.event_clock import Clock
from fedtide.engine.transports.base import EvaluateInstructions, EvaluateResults, FitInstructions, Transport
from strategies import FlatParameters, Layout
from strategies.core.parameters import read_parameters
from strategies.core.replies import OK, ReplyTable
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import ClientFailure, RoundInstructions, Task
from strategies.core.state import Rows, StateDict, Vectors, take


class Simulation(NamedTuple):
    """The virtual clients of a run."""

    environment: ClientEnvironment
    initial: FlatParameters  # all messages have their layout
    clock: Clock  # who is there, and whose replies are lost, by round
    defaults: FitConfig  # for strategies that send none


class VirtualTransport(Transport):
    """Base of the transports to virtual clients: makes jobs of instructions, and replies of answers."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation, self.layout = simulation, simulation.initial.layout
        self.memories: dict[int, Any] = {}  # results of `store`, by client
        self._rounds: dict[int, int] = {}  # the rounds in which they were stored
        self._noted: set[str] = set()
        self._have_trained = False
        has_examples = simulation.environment.data.sizes > 0
        self._reachable = None if has_examples.all() else np.flatnonzero(has_examples)

    def reachable(self) -> NDArray[np.intp] | None:
        """Return the clients with examples: a simulated client without any never gets some."""
        return self._reachable

    @abstractmethod
    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterable[Answers]:
        """Have clients train, all from the same weights.

        They have started when it returns; iterating over the result waits for the answers. Some of their
        vectors may be a `RemoteVector`.
        """

    @abstractmethod
    def run_evaluation(self, broadcast: Broadcast, jobs: list[Job]) -> Iterable[Scores]:
        """Have clients evaluate the same weights, or the personal models that they derive from them."""

    @abstractmethod
    def store(self, client: int, memory: Memory) -> Any:
        """Store a client's memory; the client's next job carries what this returns."""

    @abstractmethod
    def read(self, stored: Any) -> Memory:
        """Return a client's memory, given what `store` returned."""

    def state_dict(self) -> StateDict:
        """Return the clients' memories, committed and pending."""
        keys, versions = np.array([*self._rounds], np.int64), np.array([*self._rounds.values()], np.int64)

        def packed(position: int) -> NDArray[np.uint8]:
            return np.frombuffer(to_bytes(self.read(self.memories[int(keys[position])])), np.uint8)

        return {"memories": Rows(keys, versions, Vectors(len(keys), packed))}

    def load_state_dict(self, state: StateDict) -> None:
        clients, rounds, packed = take(state, "memories")
        self.memories = {
            client: self.store(client, from_bytes(data.tobytes()))
            for client, data in zip(clients.tolist(), packed, strict=True)
        }
        self._rounds = dict(zip(clients.tolist(), rounds.tolist(), strict=True))

    def proxy(self, client: int) -> ClientProxy:
        return VirtualProxy(client, self, self.simulation.initial)

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Have clients train; those that get the same weights train together.

        PartError: a part of the user's own has failed in each of them, and no client has trained before.
        """
        self.seconds, self.notes = {}, ()
        if not instructions:
            return ReplyTable.of([]), []
        phases, answers = _Phases(), list[Answers]()
        for broadcast, jobs in self._jobs(server_round, instructions):
            waiting = iter(self.run(broadcast, jobs))
            phases.end("broadcast")
            for found in waiting:
                phases.end("train")
                phases.work = max(phases.work, found.seconds)
                self.notes = [*self.notes, *(note for note in found.notes if note not in self._noted)]
                self._noted.update(found.notes)  # several workers may report the same
                self._keep_memories(server_round, found)
                answers.append(found)
                phases.end("collect")
        self._have_trained |= any(len(found.reported) for found in answers)
        traces = [failure.trace for found in answers for failure in found.failures if failure.trace]
        if traces and not self._have_trained:
            raise PartError(traces[0])
        lost = self.simulation.clock.lost(server_round)  # which their clients do not notice
        results = _table(answers, lost, self.layout)
        phases.end("collect")
        self.seconds = phases.disjoint()
        return results, _failures(answers, lost)

    def _keep_memories(self, server_round: int, answers: Answers) -> None:
        """Store the memories that clients have from now on, also those whose replies will be lost."""
        if answers.memories:
            for client, memory in zip(answers.reported["client"].tolist(), answers.memories, strict=True):
                self.memories[client], self._rounds[client] = self.store(client, memory), server_round

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        proxies = {int(proxy.cid): proxy for proxy, _ in instructions}
        results: EvaluateResults = []
        failures: list[ClientFailure] = []
        for broadcast, jobs in self._jobs(server_round, instructions):
            for answers in self.run_evaluation(broadcast, jobs):
                failures += [ClientFailure(str(failed.client), failed.reason) for failed in answers.failures]
                for client, loss, n, measured in answers.scores:
                    results.append((proxies[client], EvaluateRes(OK, loss, n, measured)))
        return results, failures

    def _jobs(
        self, server_round: int, instructions: FitInstructions | EvaluateInstructions
    ) -> Iterable[tuple[Broadcast, list[Job]]]:
        """Turn instructions into jobs, grouped by weights."""
        if not isinstance(instructions, RoundInstructions):
            yield from self._stock_jobs(server_round, instructions)
            return
        there = self.simulation.clock.round(server_round).completion
        jobs, alike = [], (Task(), instructions.config)
        for proxy, _ in instructions:
            client, (task, config) = int(proxy.cid), instructions.own.get(proxy.cid, alike)
            start = None if task.weights is None else task.weights.vector
            memory = self.memories.get(client)
            completion = float(there[client]) if config.completion is None else config.completion
            jobs.append(Job(client, task.arrays, config, completion, memory, start))
        yield Broadcast(instructions.weights.vector, instructions.shared), jobs

    def _stock_jobs(
        self, server_round: int, instructions: FitInstructions | EvaluateInstructions
    ) -> Iterable[tuple[Broadcast, list[Job]]]:
        """Do so for a strategy of Flower, which usually sends one `Parameters` object to all clients."""
        completion = self.simulation.clock.round(server_round).completion
        defaults = replace(self.simulation.defaults, round=server_round).to_wire()
        groups: dict[int, tuple[Broadcast, list[NDArray[Any]], list[Job]]] = {}
        for proxy, instruction in instructions:
            key = id(instruction.parameters)
            if key not in groups:
                weights, arrays = read_parameters(instruction.parameters, self.layout)
                groups[key] = Broadcast(weights), arrays, []
            _, arrays, jobs = groups[key]
            config = FitConfig.from_wire({**defaults, **instruction.config})
            client = int(proxy.cid)
            jobs.append(Job(client, arrays, config, float(completion[client]), self.memories.get(client)))
        yield from ((broadcast, jobs) for broadcast, _, jobs in groups.values())


def _table(answers: Sequence[Answers], lost: NDArray[np.bool_], layout: Layout) -> ReplyTable:
    """Return the replies in the order of their clients: workers answer in no particular order."""
    reported = np.concatenate([found.reported for found in answers])
    clients = reported["client"]
    order = np.argsort(clients)
    order = order[~lost[clients[order]]]
    vectors = [vector for found in answers for vector in found.vectors]
    extra = [own for found in answers for own in found.extra]
    states = {k: state for found in answers for k, state in found.farewells.items()}
    return ReplyTable(
        reported=reported[order],
        vectors=ReplyVectors([vectors[k] for k in order.tolist()]),
        layout=layout,
        extra=[extra[k] for k in order.tolist()] if extra else (),
        farewells={str(k): state for k, state in states.items() if not lost[k]},
    )


def _failures(answers: Sequence[Answers], lost: NDArray[np.bool_]) -> list[ClientFailure]:
    failures = [ClientFailure(str(failure.client), failure.reason) for f in answers for failure in f.failures]
    returned = [k for found in answers for k in (*found.reported["client"].tolist(), *found.farewells)]
    return failures + [ClientFailure(str(client), "reply lost") for client in returned if lost[client]]


class _Phases:
    """Adds up the time spent in each phase."""

    def __init__(self) -> None:
        self.seconds = {"broadcast": 0.0, "train": 0.0, "collect": 0.0}
        self.work = 0.0  # the longest that a process was at work
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def disjoint(self) -> dict[str, float]:
        """Return phases that add up: `train` is the work, `transfer` the way to the workers and back."""
        whole = self.seconds["train"]
        train = min(self.work, whole)
        found = {**self.seconds, "train": train, "transfer": whole - train}
        return {name: round(seconds, 6) for name, seconds in found.items()}


class VirtualProxy(ClientProxy):
    """A virtual client, whose name is its index; it can be used alone, and its failures are raised."""

    def __init__(self, client: int, transport: Transport, initial: Parameters) -> None:
        super().__init__(str(client))
        self.transport, self.initial = transport, initial

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        return GetPropertiesRes(OK, {metrics.CLIENT_ID: int(self.cid)})

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        return GetParametersRes(OK, self.initial)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        results, failures = self.transport.fit(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results.as_flower(self.transport.proxy)[0][1]

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        results, failures = self.transport.evaluate(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        return DisconnectRes("")
