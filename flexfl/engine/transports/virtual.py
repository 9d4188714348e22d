"""Transports to virtual clients, which share this machine and replay a trace."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
    Status,
)
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.memory.spill import Memories
from clients.training import Job
from clients.virtual import Answers, Scores, VirtualClients
from flexfl.engine.transports.base import (
    ClientFailure,
    EvaluateInstructions,
    EvaluateResults,
    FitInstructions,
    FitResults,
)
from strategies import FlatParameters, Layout
from strategies.core.parameters import read_parameters
from traces import RoundAvailability

OK = Status(Code.OK, "")
NO_WEIGHTS = Layout((), np.dtype(np.float32))  # of methods whose own arrays say it all


class VirtualTransport(ABC):
    """What the transports to virtual clients share: from Flower's messages to jobs, and back.

    Parameters
    ----------
    initial
        The initial weights; their layout is that of all messages.
    availability
        The trace; it says how much of its work a client finishes.
    defaults
        Configuration for strategies that send none of their own.
    lost
        The trace's answer to whose reply of a round gets lost after the work; None: nobody's.
    """

    def __init__(
        self,
        initial: FlatParameters,
        availability: Callable[[int], RoundAvailability],
        defaults: Mapping[str, Any],
        lost: Callable[[int], NDArray[np.bool_]] | None = None,
    ) -> None:
        self.initial, self.availability, self.defaults = initial, availability, dict(defaults)
        self.memories: dict[int, Any] = {}  # what `keep` returned for each client that remembers something
        self.lost = lost
        self.seconds: Mapping[str, float] = {}

    @abstractmethod
    def run(self, weights: NDArray[Any], jobs: list[Job]) -> Iterable[Answers]:
        """Have the jobs done, all from the same weights, shape (M,).

        When it returns, they are on their way; what it returns waits for the answers.
        """

    @abstractmethod
    def run_evaluation(self, weights: NDArray[Any], jobs: list[Job]) -> Iterable[Scores]:
        """Have clients evaluate, all of them the same weights, shape (M,), or what they make of them."""

    @abstractmethod
    def keep(self, client: int, memory: Memory) -> Any:
        """Put away what a client remembers; what this returns is in the client's next job."""

    @property
    def layout(self) -> Layout:
        """How the weights are cut into tensors."""
        return self.initial.layout

    def reachable(self) -> NDArray[np.intp] | None:
        """All virtual clients can be reached, always."""
        return None

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client."""
        return VirtualProxy(client, self)

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        """Let clients train; clients that got the same weights are served together."""
        phases = _Phases()
        completion = self.availability(server_round).completion
        lost = self.lost(server_round) if self.lost else np.zeros(len(completion), np.bool_)
        proxies = {int(proxy.cid): proxy for proxy, _ in instructions}
        results: FitResults = []
        failures: list[ClientFailure] = []
        for weights, jobs in self._jobs(server_round, instructions, completion):
            waiting = iter(self.run(weights, jobs))
            phases.end("broadcast")
            for answers in waiting:
                phases.end("train")
                failures += [ClientFailure(str(client), reason) for client, reason in answers.failures]
                for vector, (client, extra, metrics, n), memory in zip(
                    answers.vectors, answers.updates, answers.memories, strict=True
                ):
                    if memory is not None:
                        self.memories[client] = self.keep(client, memory)
                    if lost[client]:  # the client has done its work and cannot know
                        failures.append(ClientFailure(str(client), "reply lost"))
                        continue
                    layout = self.layout if len(vector) else NO_WEIGHTS
                    parameters = FlatParameters(vector, layout, extra)
                    results.append((proxies[client], FitRes(OK, parameters, n, dict(metrics))))
                phases.end("collect")
        self.seconds = phases.seconds
        return results, failures

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        """Let clients evaluate their models on examples of their kind."""
        completion = self.availability(server_round).completion
        proxies = {int(proxy.cid): proxy for proxy, _ in instructions}
        results: EvaluateResults = []
        failures: list[ClientFailure] = []
        for weights, jobs in self._jobs(server_round, instructions, completion):
            for answers in self.run_evaluation(weights, jobs):
                failures += [ClientFailure(str(client), reason) for client, reason in answers.failures]
                for client, loss, n, accuracy in answers.scores:
                    results.append((proxies[client], EvaluateRes(OK, loss, n, {"accuracy": accuracy})))
        return results, failures

    def _jobs(
        self,
        server_round: int,
        instructions: FitInstructions | EvaluateInstructions,
        completion: NDArray[np.floating[Any]],
    ) -> Iterable[tuple[NDArray[Any], list[Job]]]:
        """Turn instructions into jobs, those with the same weights together."""
        read: dict[int, tuple[NDArray[Any], list[NDArray[Any]], dict[str, Any]]] = {}
        groups: dict[int, tuple[NDArray[Any], list[Job]]] = {}
        for proxy, instruction in instructions:
            if id(instruction) not in read:  # one object for all clients, as a rule
                config = {**self.defaults, "round": server_round, **instruction.config}
                read[id(instruction)] = (*read_parameters(instruction.parameters, self.layout), config)
            weights, arrays, config = read[id(instruction)]
            client = int(proxy.cid)
            _, jobs = groups.setdefault(id(weights), (weights, []))
            leaves = config.get("rule") == "farewell"  # that is no work, and the trace has let it go already
            done = 1.0 if leaves else float(completion[client])
            jobs.append(Job(client, arrays, config, done, self.memories.get(client)))
        return groups.values()

    @abstractmethod
    def close(self) -> None:
        """Free what the transport holds."""


class _Phases:
    """Adds up the time since the last phase."""

    def __init__(self) -> None:
        self.seconds = {"broadcast": 0.0, "train": 0.0, "collect": 0.0}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """The time until now belongs to this phase."""
        now = time.perf_counter()
        self.seconds[phase] = round(self.seconds[phase] + now - self._last, 6)
        self._last = now


class InlineTransport(VirtualTransport):
    """Plays all clients in this process, one after the other: for tests, debugging and machines without Ray.

    Parameters
    ----------
    clients
        Who plays them.
    initial, availability, defaults, lost
        See `VirtualTransport`.
    """

    def __init__(self, clients: VirtualClients, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clients = clients
        self.put_away = Memories()

    def keep(self, client: int, memory: Memory) -> Any:
        """Put away what a client remembers: in RAM, or in a file."""
        return self.put_away.keep(client, memory)

    def run(self, weights: NDArray[Any], jobs: list[Job]) -> Iterator[Answers]:
        """Have the jobs done, in this process."""
        yield self.clients.fit(weights, jobs)

    def run_evaluation(self, weights: NDArray[Any], jobs: list[Job]) -> list[Scores]:
        """Have clients evaluate, one after the other."""
        return [self.clients.evaluate(weights, jobs)]

    def close(self) -> None:
        """Nothing is held."""


class VirtualProxy(ClientProxy):
    """A virtual client, as Flower's server-side code sees it.

    Parameters
    ----------
    client
        Its index, which is its name, too.
    transport
        Reaches it.
    """

    def __init__(self, client: int, transport: VirtualTransport) -> None:
        super().__init__(str(client))
        self.transport = transport

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Its index, as `client-id`."""
        return GetPropertiesRes(OK, {"client-id": int(self.cid)})

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        """The initial weights, the same at every client."""
        return GetParametersRes(OK, self.transport.initial)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Train alone; raises `ClientFailure`."""
        results, failures = self.transport.fit(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        """Evaluate alone; raises `ClientFailure`."""
        results, failures = self.transport.evaluate(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        """There is no connection to close."""
        return DisconnectRes("")
