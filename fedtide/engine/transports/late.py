"""Late replies in a simulation: a transport that hands some replies over in a later round."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedtide.engine.transports.base import FitInstructions, Forwarding, Transport
from fedtide.engine.transports.kept_replies import kept, put_together, taken_apart
from strategies.core.instructions import farewells_in
from strategies.core.results import ClientFailure, FitResults
from strategies.core.state import StateDict, nested, take, within
from traces import Trace

LATE = "no reply by the end of the round"


class Delayed(NamedTuple):
    """A late reply, and the round in which it arrives."""

    arrival: int
    proxy: ClientProxy
    result: FitRes


def with_late_replies(transport: Transport, trace: Trace) -> Transport:
    """Return a transport that delays replies as the trace says."""
    return LateReplies(transport, trace) if trace.has_late_replies else transport


class LateReplies(Forwarding):
    """Passes messages to another transport and delays the replies that the trace has arrive late.

    A client whose reply is delayed is at work. A lost reply never arrives; its client is free again after the
    round.
    """

    def __init__(self, transport: Transport, trace: Trace) -> None:
        super().__init__(transport)
        self.trace = trace
        self._delayed: dict[int, Delayed] = {}

    def at_work(self) -> NDArray[np.intp]:
        return np.union1d(np.array([*self._delayed], np.intp), self.transport.at_work())

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[FitResults, list[ClientFailure]]:
        results, failures = self.transport.fit(server_round, instructions, timeout)
        self.seconds, self.notes = self.transport.seconds, self.transport.notes
        late, farewells = self.trace.delay(server_round), farewells_in(instructions)
        arrived = {k: d for k, d in self._delayed.items() if d.arrival <= server_round}
        self._delayed = {k: d for k, d in self._delayed.items() if k not in arrived}
        on_time: FitResults = []
        for proxy, result in results:
            client = int(proxy.cid)
            if not late[client] or proxy.cid in farewells:
                on_time.append((proxy, result))
                continue
            self._delayed[client] = Delayed(server_round + int(late[client]), proxy, kept(result))
            failures.append(ClientFailure(proxy.cid, LATE))
        return on_time + [(d.proxy, d.result) for d in arrived.values()], failures

    def state_dict(self) -> StateDict:
        state = nested("transport", self.transport.state_dict())
        described: list[dict[str, Any]] = []
        for number, (client, delayed) in enumerate(self._delayed.items()):
            arrays, form = taken_apart(delayed.result)
            described.append({"client": client, "arrival": delayed.arrival, **form})
            state |= {f"delayed.{number}.{i}": array for i, array in enumerate(arrays)}
        return state | {"delayed": described}

    def load_state_dict(self, state: StateDict) -> None:
        self.transport.load_state_dict(within("transport", state))
        self._delayed = {}
        for number, reply in enumerate(take(state, "delayed")):
            arrays = [take(state, f"delayed.{number}.{i}") for i in range(reply["arrays"])]
            proxy = self.transport.proxy(reply["client"])
            self._delayed[reply["client"]] = Delayed(reply["arrival"], proxy, put_together(arrays, reply))
