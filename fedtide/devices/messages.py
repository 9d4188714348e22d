"""Messages over Flower's Grid until they are answered, and the instructions and results in them."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    MessageTypeLegacy,
)
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

from fedtide.base import one_object
from fedtide.base.contract import Scalar, metrics
from fedtide.devices import flower_compat as compat
from fedtide.devices.flower_compat import recorddict_compat as records
from fedtide.engine.transports.base import EngineLost

QUESTION = MessageTypeLegacy.GET_PROPERTIES  # the identity of a node
BATCH = 32  # messages in a call of the Grid
CALLS = 4  # of the Grid at a time: each waits for its turn among the nodes' requests
WAIT_SECONDS = 0.1  # for answers
_REPORTED = re.compile(rf"{metrics.BOARD}[a-z][a-z0-9-]{{0,29}}", re.ASCII)
MOST_REPORTED = 20  # numbers that a board says of itself
UNAUTHORIZED = 401
GIVEN_UP = (
    "the SuperLink has given this run up: it was stopped, or no sign of life of it came through for a "
    "minute, as more devices ask than it can answer; start them with a longer --poll"
)
HAS_LEFT = "its client has left for good; `fedtide-leave --undo` on the board lets it come back"
UNKNOWN = -1  # the client of a node that has not been identified
UNREADABLE = (ValueError, KeyError, TypeError, IndexError)
WHO_ARE_YOU = records.getpropertiesins_to_recorddict(GetPropertiesIns({}))


class Sent(NamedTuple):
    """A message that was sent."""

    node: int
    client: int
    kind: str
    round: int
    time: float  # by `time.monotonic`


class Messages:
    """Sends messages and receives the answers, however late they come."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._batch = sys.maxsize if compat.is_simulated(grid) else BATCH
        self._calls = ThreadPoolExecutor(CALLS)
        self._open: dict[str, Sent] = {}
        self._pulls: dict[Future[Iterable[Message]], list[str]] = {}  # calls that fetch answers to these

    def send(
        self, contents: Sequence[tuple[int, int, RecordDict]], kind: str, server_round: int, ttl: float
    ) -> list[int]:
        """Send contents, each with its node and client, some at a time; return the clients not reached.

        After `ttl` seconds Flower refuses an answer and reports an error instead.
        """
        unreached = []
        for first in range(0, len(contents), self._batch):
            batch = contents[first : first + self._batch]
            now = time.monotonic()  # before Flower's clock starts
            group = str(server_round)
            messages = [
                Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl)
                for node, _, content in batch
            ]
            with calling_the_superlink():
                accepted = {*self.grid.push_messages(messages)}
            for sent, (node, client, _) in zip(messages, batch, strict=True):
                name = sent.metadata.message_id  # which Flower has put in
                if name in accepted:
                    self._open[name] = Sent(node, client, kind, server_round, now)
                else:
                    unreached.append(client)
        return unreached

    def receive(self) -> Iterator[tuple[Sent, Message | str]]:
        """Yield what has come since the last call: answers, or why there will be none.

        A call of the Grid that fetches answers may take long, as nodes may still be sending them; it goes on
        beyond `WAIT_SECONDS`, and its answers are yielded later.
        """
        asked = {name for names in self._pulls.values() for name in names}
        names = [name for name in self._open if name not in asked]
        if calls := CALLS - len(self._pulls):
            size = max(self._batch, math.ceil(len(names) / calls))
            for first in range(0, len(names), size):
                some = names[first : first + size]
                self._pulls[self._calls.submit(self.grid.pull_messages, some)] = some
        done, _ = wait(self._pulls, WAIT_SECONDS)
        for pull in done:
            del self._pulls[pull]
            with calling_the_superlink():
                replies = pull.result()
            for reply in replies:
                sent = self._open.pop(reply.metadata.reply_to_message_id, None)
                if sent is not None:
                    yield sent, compat.reason_of(reply.error) if reply.has_error() else reply

    def give_up(self, node: int) -> list[Sent]:
        """Expect no more answers of a node; return the tasks that it has not answered."""
        given_up = [name for name, sent in self._open.items() if sent.node == node]
        return [sent for sent in map(self._open.pop, given_up) if sent.kind != QUESTION]

    def busy(self) -> dict[int, Sent]:
        """Return the tasks that clients are still at work on, by client."""
        return {sent.client: sent for sent in self._open.values() if sent.kind != QUESTION}


@contextmanager
def calling_the_superlink() -> Iterator[None]:
    """Raise EngineLost if the SuperLink does not know this run any more, or cannot serve a call."""
    try:
        yield
    except compat.RUN_IS_OVER as error:
        raise EngineLost(GIVEN_UP) from error
    except compat.HTTPError as error:
        unknown = isinstance(error, compat.HTTPStatusError) and error.response.status_code == UNAUTHORIZED
        raise EngineLost(GIVEN_UP if unknown else f"the SuperLink has failed: {error}") from error


def packed(instructions: Sequence[tuple[ClientProxy, FitIns | EvaluateIns]]) -> dict[str, RecordDict]:
    """Pack instructions by the client's name; one that clients share is packed only once."""
    distinct = {id(instruction): instruction for _, instruction in instructions}
    contents = {key: _pack(instruction) for key, instruction in distinct.items()}
    return {proxy.cid: contents[id(instruction)] for proxy, instruction in instructions}


def _pack(instruction: FitIns | EvaluateIns) -> RecordDict:
    if isinstance(instruction, FitIns):
        return records.fitins_to_recorddict(instruction, keep_input=True)
    return records.evaluateins_to_recorddict(instruction, keep_input=True)


def with_scalars(content: RecordDict, scalars: Mapping[str, Any]) -> RecordDict:
    """Return an instruction with further scalars beside its own; the arrays are the same objects."""
    return RecordDict(
        {
            key: ConfigRecord({**scalars, **record}) if isinstance(record, ConfigRecord) else record
            for key, record in content.items()
        }
    )


def unpacked(content: RecordDict, kind: str) -> FitRes | EvaluateRes | str:
    """Return the result in a reply; the reason if it has none, or says that the client failed."""
    result: FitRes | EvaluateRes
    try:
        content = one_object.unpacked(content)
        if kind == MessageType.TRAIN:
            result = records.recorddict_to_fitres(content, keep_input=False)
        else:
            result = records.recorddict_to_evaluateres(content)
    except UNREADABLE as reason:
        return str(reason)
    if result.status.code != Code.OK:
        return result.status.message or result.status.code.name
    return result


def identity(content: RecordDict) -> tuple[Scalar | None, bool] | str:
    """Return the client that a node says it is, None if it does not say, and whether it reads one object.

    The reason, if it says that its client has left for good.
    """
    try:
        said = records.recorddict_to_getpropertiesres(content).properties
    except UNREADABLE:
        return None, False
    if said.get(metrics.DEPARTING) is True:
        return HAS_LEFT
    return said.get(metrics.CLIENT_ID), said.get(one_object.NAME) is True


def of_board(told: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return what a board says of itself in the metrics of a reply: numbers, by name."""
    said = {
        name.removeprefix(metrics.BOARD): value
        for name, value in told.items()
        if _REPORTED.fullmatch(name) and isinstance(value, int | float) and math.isfinite(value)
    }
    return dict(islice(said.items(), MOST_REPORTED))
