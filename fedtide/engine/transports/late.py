"""Late replies in a simulation: a transport that hands some replies over in a later round."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.transports.base import FitInstructions, Forwarding, Transport
from fedtide.engine.transports.kept_replies import put_together, taken_apart
from strategies import Layout
from strategies.core.replies import ReplyTable
from strategies.core.round import ClientFailure, farewells_in
from strategies.core.state import StateDict, nested, take, within
from traces import Trace

LATE = "no reply by the end of the round"


class Delayed(NamedTuple):
    """A late reply, and the round in which it arrives."""

    arrival: int
    reply: ReplyTable


def with_late_replies(transport: Transport, trace: Trace, layout: Layout) -> Transport:
    """Return a transport that delays replies as the trace says; `layout` is that of weights and buffers."""
    return LateReplies(transport, trace, layout) if trace.has_late_replies else transport


class LateReplies(Forwarding):
    """Passes messages to another transport and delays the replies that the trace has arrive late.

    A client whose reply is delayed is at work. A lost reply never arrives; its client is free again after the
    round.
    """

    def __init__(self, transport: Transport, trace: Trace, layout: Layout) -> None:
        super().__init__(transport)
        self.trace, self.layout = trace, layout
        self._delayed: dict[int, Delayed] = {}

    def at_work(self) -> NDArray[np.intp]:
        return np.union1d(np.array([*self._delayed], np.intp), self.transport.at_work())

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        table, failures = self.transport.fit(server_round, instructions, timeout)
        self.seconds, self.notes = self.transport.seconds, self.transport.notes
        arrived = {k: d for k, d in self._delayed.items() if d.arrival <= server_round}
        self._delayed = {k: d for k, d in self._delayed.items() if k not in arrived}
        clients = table.reported["client"]
        lags = self.trace.delay(server_round)[clients]
        lags[np.isin(clients, [*map(int, farewells_in(instructions))])] = 0
        for k in np.flatnonzero(lags).tolist():
            self._delayed[int(clients[k])] = Delayed(server_round + int(lags[k]), table.row(k))
            failures.append(ClientFailure(str(clients[k]), LATE))
        on_time = table.chosen(np.flatnonzero(lags == 0))
        return ReplyTable.joined([on_time, *(d.reply for d in arrived.values())]), failures

    def state_dict(self) -> StateDict:
        state = nested("transport", self.transport.state_dict())
        described: list[dict[str, Any]] = []
        for number, (client, delayed) in enumerate(self._delayed.items()):
            arrays, form = taken_apart(delayed.reply)
            described.append({"client": client, "arrival": delayed.arrival, **form})
            state |= {f"delayed.{number}.{i}": array for i, array in enumerate(arrays)}
        return state | {"delayed": described}

    def load_state_dict(self, state: StateDict) -> None:
        self.transport.load_state_dict(within("transport", state))
        self._delayed = {}
        for number, reply in enumerate(take(state, "delayed")):
            arrays = [take(state, f"delayed.{number}.{i}") for i in range(reply["arrays"])]
            kept = put_together(reply["client"], arrays, reply, self.layout)
            self._delayed[reply["client"]] = Delayed(reply["arrival"], kept)
