"""Event time on devices: a round ends with the B-th reply, whichever task it answers."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
from flwr.app import MessageType
from flwr.common import FitRes
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtide.base.contract import metrics
from fedtide.devices.deadlines import RoundDeadlines
from fedtide.devices.grid import GridTransport
from fedtide.devices.identities import Identities
from fedtide.engine.transports.base import FitInstructions
from strategies.core.replies import ReplyTable
from strategies.core.round import ClientFailure, RoundInstructions, farewells_in
from strategies.core.state import StateDict, take


class OpenTask(NamedTuple):
    """A task that the server waits for: its round, and until when."""

    round: int
    overdue: float


class Ended(NamedTuple):
    """How a task has ended; tasks are in the order of their ends, then of their clients."""

    moment: float
    client: int
    round: int
    outcome: FitRes | str


class EventGrid(GridTransport):
    """Reaches devices whose replies end the rounds: `replies` of them, or those of all that are at work.

    What has come since the last round ended counts in the next one. A task ends with its reply, or without
    one when its node is restarted, or at its own deadline. A reply that comes later does not count; until it
    comes, its client cannot be reached. `limit` is C, the most clients that are at work at a time.

    Moments are seconds since the first round began, without those between the processes of a resumed run.
    """

    def __init__(
        self,
        grid: Grid,
        num_clients: int,
        deadlines: RoundDeadlines,
        replies: int,
        limit: int,
        earlier: Identities | None = None,
    ) -> None:
        super().__init__(grid, num_clients, deadlines, replay=False, earlier=earlier)
        self.replies, self.limit = replies, limit
        self.now = 0.0  # when the last round ended
        self._origin: float | None = None  # by `time.monotonic`
        self._open: dict[int, OpenTask] = {}  # by client
        self._ended: dict[int, Ended] = {}  # those of the open tasks that count in the next round
        self._record: dict[str, Any] = {}

    def at_work(self) -> NDArray[np.intp]:
        return np.array(sorted(self._open), np.intp)

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Give tasks, wait until the round is over, and return the replies that have come, in their order.

        Who leaves and is asked for its state is waited for, and its answer ends no round.
        """
        names = instructions.withdrawn if isinstance(instructions, RoundInstructions) else []
        withdrawn = [(k, self._open.pop(k).round) for k in map(int, names) if k in self._open]
        self._ended = {k: ended for k, ended in self._ended.items() if k in self._open}
        if not instructions and not self._open:
            self._wait_for_a_free_client()
        farewells = {*map(int, farewells_in(instructions))}
        begin = self._moment(time.monotonic())
        asked, why, limit = self._send(server_round, instructions, MessageType.TRAIN, timeout)
        overdue = self._moment(time.monotonic()) + (limit or math.inf)
        self._open |= dict.fromkeys(asked, OpenTask(server_round, overdue))
        idle = self.limit - len(self._open.keys() - farewells)
        self._wait(lambda: self._is_over(begin, farewells & asked), time.monotonic(), None)
        ended = sorted(e for e in self._ended.values() if e.moment <= self.now or e.client in farewells)
        for client in [e.client for e in ended]:
            del self._open[client], self._ended[client]
        results = [(self.proxy(e.client), e.outcome) for e in ended if isinstance(e.outcome, FitRes)]
        for e in ended:
            if isinstance(e.outcome, str):
                late = "" if e.round == server_round else f"task of round {e.round}: "
                why[e.client] = late + e.outcome
        self._note(results)
        tasks = [(e, (e.client, e.round, e.moment)) for e in ended if e.client not in farewells]
        self._record = {
            "begin": begin,
            "virtual_seconds": self.now,
            "idle": idle,
            "replied": [task for e, task in tasks if isinstance(e.outcome, FitRes)],
            "dropped": [task for e, task in tasks if isinstance(e.outcome, str)],
            "withdrawn": withdrawn,
        }
        if server_round == 1:
            self._record["round_ends"] = self.replies
        return ReplyTable.of(results), [ClientFailure(str(k), reason) for k, reason in why.items()]

    def record(self) -> dict[str, Any]:
        """Return in addition when the round began and ended, and which tasks have ended."""
        return super().record() | self._record

    def state_dict(self) -> StateDict:
        return {"now": self.now}

    def load_state_dict(self, state: StateDict) -> None:
        self.now = take(state, "now")

    def _moment(self, at: float) -> float:
        """Return a moment of `time.monotonic` in seconds since the first round began."""
        if self._origin is None:
            self._origin = at - self.now
        return round(at - self._origin, 6)

    def _present(self) -> set[int]:
        """Return the clients whose nodes are online, without those that do what nobody waits for."""
        return super()._present() - (self.messages.busy().keys() - self._open.keys())

    def _is_over(self, begin: float, farewells: set[int]) -> bool:
        """Whether the round that began at `begin` is over; `now` is then the moment at which it ended."""
        self._collect()
        for sent, result, at in self._arrived:
            task = self._open.get(sent.client)
            if sent.kind == MessageType.TRAIN and task is not None and task.round == sent.round:
                self._end(sent.client, at, result)
        self._arrived, now = [], time.monotonic()
        for client, task in self._open.items():
            if self._moment(now) > task.overdue:
                self._end(client, now, "no reply by its deadline")
        if not farewells <= self._ended.keys():
            return False
        ended = [e for e in self._ended.values() if e.client not in farewells]
        replies = sorted(e.moment for e in ended if isinstance(e.outcome, FitRes))
        if len(replies) >= self.replies:
            self.now = max(begin, replies[self.replies - 1])
        elif len(self._ended) == len(self._open):
            self.now = self._moment(now)
        else:
            return False
        return True

    def _end(self, client: int, at: float, outcome: Any) -> None:
        """End a task, unless it has ended before."""
        task = self._open[client]
        if isinstance(outcome, FitRes):
            outcome.metrics.setdefault(metrics.ROUND, task.round)
        self._ended.setdefault(client, Ended(self._moment(at), client, task.round, outcome))
