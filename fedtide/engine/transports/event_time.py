"""Event time in a simulation: tasks are trained late and together, and replies arrive when the clock says so.

What a client returns depends on its task alone: its start, its rate, its round, its steps. So tasks wait, and
when the first of them has to reply, all train in one call, each from the weights that it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import FitIns
from numpy.typing import NDArray

from fedtide.engine.availability import Clock
from fedtide.engine.event_clock import EventClock, OpenTask, told
from fedtide.engine.transports.base import FitInstructions, Forwarding, Transport
from fedtide.engine.transports.kept_replies import put_together, taken_apart
from fedtide.engine.transports.late import with_late_replies
from fedtide.ground.contract import REPORTED, FitConfig
from strategies import FlatParameters, Layout
from strategies.core.replies import ReplyTable
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import ClientFailure, RoundInstructions, Task
from strategies.core.state import StateDict, nested, take, within
from traces import Trace
from traces.base import SECOND


class EventTime(Forwarding):
    """Passes tasks to another transport when they have to be trained, and hands over replies as they arrive.

    `clock` decides what arrives in a round, `limit` is C, the most clients that are at work at a time, and
    `layout` that of weights and buffers.
    """

    def __init__(self, transport: Transport, clock: EventClock, limit: int, layout: Layout) -> None:
        super().__init__(transport)
        self.clock, self.limit, self.layout = clock, limit, layout
        self._waiting: dict[int, tuple[Task, FitConfig]] = {}  # tasks that are not trained, by client
        self._trained: dict[int, ReplyTable] = {}  # replies, one each, that have not arrived
        self._failures: dict[int, str] = {}  # why clients drop out that could not be trained
        self._record: dict[str, Any] = {}

    def at_work(self) -> NDArray[np.intp]:
        return np.sort(np.array([task.client for task in self.clock.tasks], np.intp))

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Take on tasks, and return the replies that arrive in the round, in their order.

        Who leaves and is asked for its state answers at once.
        """
        if not isinstance(instructions, RoundInstructions):
            raise TypeError("in event time, strategies of Flower are named by --strategy")
        self.seconds, self.notes = {}, ()
        withdrawn = self.clock.withdraw({*map(int, instructions.withdrawn)})
        self._forget(withdrawn)
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
            **told(ended, withdrawn),
        }
        if farewells:
            states, silent = self.transport.fit(server_round, farewells, timeout)
            return ReplyTable.joined([results, states]), [*failures, *silent]
        return results, failures

    def record(self) -> dict[str, Any]:
        """Return when the round began, how many more could have been at work, and which tasks have ended."""
        return self.transport.record() | self._record

    def state_dict(self) -> StateDict:
        """Return the open tasks, those of them that are trained with their replies."""
        arrays: dict[int, NDArray[Any]] = {}  # by identity, as tasks have arrays in common
        position: dict[int, int] = {}

        def kept_at(array: NDArray[Any]) -> int:
            arrays[id(array)] = array
            return position.setdefault(id(array), len(position))

        waiting, replies = [], []
        for client, (task, config) in self._waiting.items():
            sent = [kept_at(array) for array in (_weights(task).vector, *task.arrays)]
            waiting.append({"client": client, "config": config.to_wire(), "sent": sent})
        columns = []  # replies of weights alone
        for client, reply in self._trained.items():
            if len(reply.vectors) and len(reply.vectors[0]) == self.layout.size and not reply.extra:
                columns.append(reply)
                continue
            parts, form = taken_apart(reply)
            replies.append({"client": client, "sent": [kept_at(part) for part in parts], **form})
        rows = ReplyTable.joined(columns)
        return {
            **nested("transport", self.transport.state_dict()),
            **nested("clock", self.clock.state_dict()),
            **{f"array.{k}": array for k, array in enumerate(arrays.values())},
            "waiting": waiting,
            "replies": replies,
            "rows": np.frombuffer(rows.reported.tobytes(), np.uint8),
            "vectors": np.array([*rows.vectors], self.layout.dtype),
            "failures": [[*failure] for failure in self._failures.items()],
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.transport.load_state_dict(within("transport", state))
        self.clock.load_state_dict(within("clock", state))
        loaded: dict[int, NDArray[Any]] = {}

        def array(k: int) -> NDArray[Any]:
            return loaded.setdefault(k, take(state, f"array.{k}"))

        self._waiting, self._trained = {}, {}
        for saved in take(state, "waiting"):
            start, *own = (array(k) for k in saved["sent"])
            task = Task(arrays=tuple(own), weights=FlatParameters(start, self.layout))
            self._waiting[saved["client"]] = task, FitConfig.from_wire(saved["config"])
        for saved in take(state, "replies"):
            self._trained[saved["client"]] = put_together(
                saved["client"], [array(k) for k in saved["sent"]], saved, self.layout
            )
        rows = np.frombuffer(take(state, "rows").tobytes(), REPORTED)
        for row, vector in zip(rows, take(state, "vectors"), strict=True):
            self._trained[int(row["client"])] = ReplyTable(
                reported=row[None], vectors=ReplyVectors([vector]), layout=self.layout
            )
        self._failures = dict(map(tuple, take(state, "failures")))

    # Details

    def _take_on(self, instructions: RoundInstructions[FitIns]) -> RoundInstructions[FitIns]:
        """Take on the tasks of a round; return the instructions to clients that leave, and do not train."""
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
        """Train all that wait; those whose replies are lost only if they remember what they did."""
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
        self._trained |= {client: table.row(k) for k, client in enumerate(table.reported["client"].tolist())}
        reasons = {int(failure.client): failure.reason for failure in failures}
        self._failures |= {client: reason for client, reason in reasons.items() if client in waiting}
        self.clock.fail(self._failures.keys())

    def _forget(self, tasks: Sequence[OpenTask]) -> None:
        """Forget tasks that have ended or were withdrawn."""
        for task in tasks:
            for found in (self._waiting, self._trained, self._failures):
                found.pop(task.client, None)

    def _results(self, tasks: Sequence[OpenTask]) -> ReplyTable:
        """Return the replies to tasks, in the order given, and how long they took."""
        table = ReplyTable.joined([self._trained[task.client] for task in tasks])
        return table.with_seconds([task.seconds for task in tasks])


def timed(transport: Transport, trace: Trace, clock: Clock, limit: int, layout: Layout) -> Transport:
    """Return a transport whose replies arrive when the clock or, if it counts rounds, the trace says so."""
    if isinstance(clock, EventClock):
        return EventTime(transport, clock, limit, layout)
    return with_late_replies(transport, trace, layout)


def _weights(task: Task) -> FlatParameters:
    """Return what a client starts from, which each task has here."""
    assert task.weights is not None
    return task.weights
