"""Replies that arrive in a later round than that of their task: late ones, and those of event time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from flwr.common import FitIns, FitRes, Parameters
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.base.contract import REPORTED, FitConfig
from fedtide.engine.event_clock import Clock, EventClock, OpenTask, told
from fedtide.engine.transports.base import (
    EvaluateInstructions,
    EvaluateResults,
    FitInstructions,
    Transport,
)
from strategies import FlatParameters, Layout
from strategies.core.replies import OK, ReplyTable
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import ClientFailure, RoundInstructions, Task, farewells_in
from strategies.core.state import StateDict, nested, take, within
from traces import Trace
from traces.base import SECOND

LATE = "no reply by the end of the round"


class KeepsReplies(Transport):
    """Passes messages on to another transport, and keeps replies until they arrive.

    `layout` is that of weights and buffers.
    """

    def __init__(self, transport: Transport, layout: Layout) -> None:
        super().__init__()
        self.transport, self.layout = transport, layout
        self._kept: dict[int, ReplyTable] = {}  # one reply each, by client

    def reachable(self) -> NDArray[np.intp] | None:
        return self.transport.reachable()

    def is_stuck(self) -> bool:
        return self.transport.is_stuck()

    def proxy(self, client: int) -> ClientProxy:
        return self.transport.proxy(client)

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        return self.transport.evaluate(server_round, instructions, timeout)

    def record(self) -> dict[str, Any]:
        return self.transport.record()

    def close(self) -> None:
        self.transport.close()

    def _keep(self, table: ReplyTable, rows: Iterable[int]) -> None:
        self._kept |= {int(table.reported["client"][k]): table.row(k) for k in rows}

    def state_dict(self) -> StateDict:
        """Return the kept replies: the columns of simulated ones, or Flower's messages."""
        table = ReplyTable.joined([*self._kept.values()])
        sent = [result.parameters for result in table.results]
        own = [[np.frombuffer(tensor, np.uint8) for tensor in one.tensors] for one in sent] or table.extra
        return {
            **nested("transport", self.transport.state_dict()),
            "rows": np.frombuffer(table.reported.tobytes(), np.uint8),
            "vectors": np.array([*table.vectors], self.layout.dtype),
            "own": [len(arrays) for arrays in own],
            **{f"own.{k}.{i}": array for k, arrays in enumerate(own) for i, array in enumerate(arrays)},
            "results": [[r.parameters.tensor_type, r.num_examples, r.metrics] for r in table.results],
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.transport.load_state_dict(within("transport", state))
        own = [
            [take(state, f"own.{k}.{i}") for i in range(count)] for k, count in enumerate(take(state, "own"))
        ]
        results = [
            FitRes(OK, Parameters([array.tobytes() for array in arrays], kind), num_examples, told)
            for arrays, (kind, num_examples, told) in zip(own, take(state, "results"), strict=False)
        ]
        reported = np.frombuffer(take(state, "rows").tobytes(), REPORTED)
        table = ReplyTable(
            reported=reported,
            vectors=ReplyVectors(take(state, "vectors")),
            layout=self.layout,
            extra=() if results else own,
            names=[*map(str, reported["client"])] if results else (),
            results=results,
        )
        self._kept = {}
        self._keep(table, range(len(table)))


class LateReplies(KeepsReplies):
    """Has replies arrive as many rounds late as the trace says.

    A client whose reply is late is at work. A lost reply never arrives; its client is free again after the
    round.
    """

    def __init__(self, transport: Transport, trace: Trace, layout: Layout) -> None:
        super().__init__(transport, layout)
        self.trace = trace
        self._arrivals: dict[int, int] = {}  # rounds, by client

    def at_work(self) -> NDArray[np.intp]:
        return np.union1d(np.array([*self._kept], np.intp), self.transport.at_work())

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        table, failures = self.transport.fit(server_round, instructions, timeout)
        self.seconds, self.notes = self.transport.seconds, self.transport.notes
        due = [client for client, arrival in self._arrivals.items() if arrival <= server_round]
        arrived = [self._kept.pop(client) for client in due if self._arrivals.pop(client)]
        clients = table.reported["client"]
        lags = self.trace.delay(server_round)[clients]
        lags[np.isin(clients, [*map(int, farewells_in(instructions))])] = 0
        late = np.flatnonzero(lags)
        self._keep(table, late.tolist())
        self._arrivals |= dict(zip(clients[late].tolist(), (server_round + lags[late]).tolist(), strict=True))
        failures += [ClientFailure(str(client), LATE) for client in clients[late]]
        return ReplyTable.joined([table.chosen(np.flatnonzero(lags == 0)), *arrived]), failures

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"arrivals": [*self._arrivals.items()]}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._arrivals = dict(take(state, "arrivals"))


class EventTime(KeepsReplies):
    """Has replies arrive when the clock says so; `limit` is C, the most clients that are at work at a time.

    What a client returns depends on its task alone: its start, its rate, its round, its steps. So tasks wait,
    and when the first of them has to reply, all train in one call, each from the weights that it was sent.
    """

    def __init__(self, transport: Transport, clock: EventClock, limit: int, layout: Layout) -> None:
        super().__init__(transport, layout)
        self.clock, self.limit = clock, limit
        self._waiting: dict[int, tuple[Task, FitConfig]] = {}  # tasks that are not trained, by client
        self._failures: dict[int, str] = {}  # why clients drop out that could not be trained
        self._record: dict[str, Any] = {}

    def at_work(self) -> NDArray[np.intp]:
        return np.sort(np.array([task.client for task in self.clock.tasks], np.intp))

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Take on tasks, and return the replies that arrive in the round, in their order.

        Clients that leave and are asked for their states answer at once.
        """
        if not isinstance(instructions, RoundInstructions):
            raise TypeError("in event time, strategies of Flower are named by --strategy")
        self.seconds, self.notes = {}, ()
        withdrawn, stopped = (
            self.clock.withdraw({*map(int, names)})
            for names in (instructions.withdrawn, instructions.stopped)
        )
        self._forget([*withdrawn, *stopped])
        farewells = self._take_on(instructions)
        idle = self.limit - len(self.clock.tasks)
        while any(task.replies and task.client in self._waiting for task in self.clock.ending()):
            self._train(server_round, timeout)
        ended = self.clock.end()
        results = self._results([task for task in ended if task.replies])
        failures = [
            ClientFailure(str(task.client), self._failures.get(task.client, task.why_silent), task.seconds)
            for task in ended
            if not task.replies
        ]
        self._forget(ended)
        self._record = {
            "begin": self.clock.begin / SECOND,
            "idle": idle,
            **told(ended, withdrawn, stopped, self.clock.begin),
        }
        if farewells:
            states, silent = self.transport.fit(server_round, farewells, timeout)
            return ReplyTable.joined([results, states]), [*failures, *silent]
        return results, failures

    def record(self) -> dict[str, Any]:
        """Return the beginning of the round, the number of idle places, and the tasks that have ended."""
        return self.transport.record() | self._record

    def state_dict(self) -> StateDict:
        arrays: dict[int, NDArray[Any]] = {}  # by identity, as tasks have arrays in common
        position: dict[int, int] = {}

        def kept_at(array: NDArray[Any]) -> int:
            arrays[id(array)] = array
            return position.setdefault(id(array), len(position))

        waiting = []
        for client, (task, config) in self._waiting.items():
            sent = [kept_at(array) for array in (_weights(task).vector, *task.arrays)]
            waiting.append({"client": client, "config": config.to_wire(), "sent": sent})
        return super().state_dict() | {
            **nested("clock", self.clock.state_dict()),
            **{f"array.{k}": array for k, array in enumerate(arrays.values())},
            "waiting": waiting,
            "failures": [*self._failures.items()],
        }

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.clock.load_state_dict(within("clock", state))
        array = cache(lambda k: take(state, f"array.{k}"))
        self._waiting = {}
        for saved in take(state, "waiting"):
            start, *own = map(array, saved["sent"])
            task = Task(arrays=tuple(own), weights=FlatParameters(start, self.layout))
            self._waiting[saved["client"]] = task, FitConfig.from_wire(saved["config"])
        self._failures = dict(map(tuple, take(state, "failures")))

    # Details

    def _take_on(self, instructions: RoundInstructions[FitIns]) -> RoundInstructions[FitIns]:
        """Take on the tasks of a round; return the instructions to clients that leave, which do not train."""
        farewells = RoundInstructions(FitIns, instructions.weights, instructions.shared, instructions.config)
        alike, asked = (Task(), instructions.config), []
        for proxy, _ in instructions:
            client, (task, config) = int(proxy.cid), instructions.own.get(proxy.cid, alike)
            if config.farewell:
                farewells.add_own(proxy, task, config)
                continue
            asked.append(client)
            start, arrays = task.weights or instructions.weights, instructions.shared + task.arrays
            self._waiting[client] = Task(arrays=arrays, weights=start), config
        self.clock.give(np.array(asked, np.intp))
        return farewells

    def _train(self, server_round: int, timeout: float | None) -> None:
        """Train all that wait; clients whose replies are lost train only if they keep a memory."""
        tasks = {task.client: task for task in self.clock.tasks}
        waiting, self._waiting = self._waiting, {}
        jobs: RoundInstructions[FitIns] | None = None
        for client, (task, config) in waiting.items():
            open_task = tasks[client]
            if open_task.completion and (not open_task.lost or config.last_accepted is not None):
                jobs = jobs or RoundInstructions(FitIns, _weights(task), (), config)
                own = replace(config, completion=open_task.completion)
                jobs.add_own(self.proxy(client), task, own)
        if jobs is None:
            return
        table, failures = self.transport.fit(server_round, jobs, timeout)
        self.seconds, self.notes = self.transport.seconds, [*self.notes, *self.transport.notes]
        self._keep(table, range(len(table)))
        reasons = {int(failure.client): failure.reason for failure in failures}
        self._failures |= {client: reason for client, reason in reasons.items() if client in waiting}
        self.clock.fail(self._failures.keys())

    def _forget(self, tasks: Sequence[OpenTask]) -> None:
        for task in tasks:
            for found in (self._waiting, self._kept, self._failures):
                found.pop(task.client, None)

    def _results(self, tasks: Sequence[OpenTask]) -> ReplyTable:
        """Return the replies to tasks, in the order given, and how long they took."""
        table = ReplyTable.joined([self._kept[task.client] for task in tasks])
        return table.with_seconds([task.seconds for task in tasks])


def timed(transport: Transport, trace: Trace, clock: Clock, limit: int, layout: Layout) -> Transport:
    """Return a transport whose replies arrive as the clock says or, with a clock of rounds, the trace."""
    if isinstance(clock, EventClock):
        return EventTime(transport, clock, limit, layout)
    return LateReplies(transport, trace, layout) if trace.has_late_replies else transport


def _weights(task: Task) -> FlatParameters:
    """Return the weights that a client starts from; every task has them here."""
    assert task.weights is not None
    return task.weights
