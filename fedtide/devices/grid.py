"""The transport of `flwr run`: clients are nodes of Flower, which work until they reply or the round ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtide.base import one_object
from fedtide.base.contract import Scalar, fit, metrics
from fedtide.base.wording import plain
from fedtide.devices.deadlines import GRACE_SECONDS, RoundDeadlines
from fedtide.devices.flower_compat import node_proxy
from fedtide.devices.identities import Identities
from fedtide.devices.messages import (
    QUESTION,
    UNKNOWN,
    WHO_ARE_YOU,
    Messages,
    Sent,
    calling_the_superlink,
    identity,
    of_board,
    packed,
    unpacked,
    with_scalars,
)
from fedtide.devices.nodes import PATIENCE_SECONDS, Nodes
from fedtide.engine.transports.base import EvaluateInstructions, EvaluateResults, FitInstructions, Transport
from strategies.core.replies import FitResult, ReplyTable
from strategies.core.round import ClientFailure

POLL_SECONDS = 0.1  # between two questions to the SuperLink at first; later they are five times rarer
LOOK_SECONDS = 2.0  # between two looks at the nodes, within a round
MOST_NAMED = 20  # of the boards in a line
LEAST_TTL = 43200.0  # of a task: longer than any round, as Flower refuses replies that come after it

Result = TypeVar("Result", FitRes, EvaluateRes)


class Arrived(NamedTuple):
    """What came of a task: a result, or why there is none."""

    sent: Sent
    result: FitRes | EvaluateRes | str
    time: float  # by `time.monotonic`, the same for all that is found at once


class GridTransport(Transport):
    """Reaches clients through Flower's Grid, in simulation and on devices; see `Transport`.

    Nodes are asked for the index of their client when they come online, and answer while rounds are running.
    A client that has not replied when a round ends is at work: it gets no further task, and replies late.
    Nodes keep the memories of their clients, so there is no state to save.
    """

    def __init__(
        self,
        grid: Grid,
        num_clients: int,
        deadlines: RoundDeadlines | None = None,  # None: a round ends when all have replied
        min_replies: float = 0.0,  # share of the clients asked whose replies end a round; 0: all
        replay: bool = True,  # whether clients do only what the run's trace says
        earlier: Identities | None = None,  # what nodes have said in earlier runs
    ) -> None:
        super().__init__()
        self.grid, self.nodes, self.messages = grid, Nodes(num_clients, earlier), Messages(grid)
        self.deadlines, self.min_replies, self.replay = deadlines, min_replies, replay
        self.resumed = ""  # Flower's number of the resumed run, so that clients keep their memories of it
        self.preprocessing = ""  # what the task does to its data, for clients with data of their own
        self.data_less: set[int] = set()  # simulated clients without examples: they are never asked
        self._arrived: list[Arrived] = []
        self._looked = -math.inf
        self._deadline: float | None = None
        self._names: dict[str, str] = {}  # of the boards, by client, as recorded last
        self._boards: dict[str, dict[str, Scalar]] = {}  # what boards have said of themselves in this round
        self._without_data: set[int] = set()  # the clients of boards that have said so

    def connect(self, members: NDArray[np.intp], timeout: float, least: int) -> NDArray[np.intp]:
        """Wait until `least` of these clients are connected; return those that are.

        After `timeout` seconds only nodes that are online and have not answered yet are waited for.
        """
        begin = time.monotonic()
        while len(connected := np.intersect1d(members, sorted(self._present()))) < least:
            if time.monotonic() > begin + timeout and not self.nodes.expects():
                break
            if self.deadlines is None or time.monotonic() - self._looked > LOOK_SECONDS:
                self._look()
            self._collect()
            _pause(begin)
        return connected

    def reachable(self) -> NDArray[np.intp]:
        self._look()
        self._collect()
        return np.array(sorted(self._present() - self.data_less), np.intp)

    def at_work(self) -> NDArray[np.intp]:
        """Return the clients that have a task from an earlier round, in ascending order.

        That includes those whose reply has come since: it counts in the next call of `fit`.
        """
        replied = (arrived.sent.client for arrived in self._arrived if isinstance(arrived.result, FitRes))
        return np.array(sorted({*self.messages.busy(), *replied}), np.intp)

    def proxy(self, client: int) -> ClientProxy:
        node = self.nodes.of_client.get(client, 0)  # 0: its board has become another client, and gets no task
        return node_proxy(self.grid, node, str(client))

    def fit(
        self, server_round: int, instructions: FitInstructions, timeout: float | None
    ) -> tuple[ReplyTable, list[ClientFailure]]:
        """Have clients train, until all or enough have replied, or the deadline has passed."""
        if not instructions:
            self._wait_for_a_free_client()
        asked = {int(proxy.cid) for proxy, _ in instructions}
        results, failures = self._round(FitRes, server_round, instructions, MessageType.TRAIN, timeout)
        arrived, self._arrived = self._arrived, []
        for sent, late, _ in arrived:
            if sent.client in asked or sent.kind != MessageType.TRAIN:
                continue
            if isinstance(late, FitRes):
                late.metrics.setdefault(metrics.ROUND, sent.round)
                results.append((self.proxy(sent.client), late))
            else:
                failures.append(ClientFailure(str(sent.client), f"task of round {sent.round}: {late}"))
        self._note(results)
        return ReplyTable.of(results), failures

    def evaluate(
        self, server_round: int, instructions: EvaluateInstructions, timeout: float | None
    ) -> tuple[EvaluateResults, list[ClientFailure]]:
        return self._round(EvaluateRes, server_round, instructions, MessageType.EVALUATE, timeout)

    def record(self) -> dict[str, Any]:
        """Return events of nodes, and the deadline; in a simulation nothing: its record is that of sim.py."""
        if self.deadlines is None:
            return {}
        self.nodes.keep()
        record: dict[str, Any] = {"events": self.nodes.events, "time": round(time.time(), 3)}
        if self._deadline is not None:
            record["deadline_seconds"] = round(self._deadline, 3)
        if self._boards:
            record["boards"] = self._boards
        if (names := self.nodes.names()) != self._names:
            record["names"] = self._names = names
        self.nodes.events, self._deadline, self._boards = [], None, {}
        return record

    def _round(
        self,
        wanted: type[Result],
        server_round: int,
        instructions: Sequence[tuple[ClientProxy, FitIns | EvaluateIns]],
        kind: str,
        timeout: float | None,
    ) -> tuple[list[tuple[ClientProxy, Result]], list[ClientFailure]]:
        """Send instructions, and sort the replies that come before the end of the round."""
        proxies = {int(proxy.cid): proxy for proxy, _ in instructions}
        asked, why, limit = self._send(server_round, instructions, kind, timeout)
        start = time.monotonic()
        answers = self._answers(kind, server_round, len(asked), start, limit)
        why |= dict.fromkeys(asked - answers.keys(), f"no reply within {time.monotonic() - start:.0f} s")
        results: list[tuple[ClientProxy, Result]] = []
        for client, answer in answers.items():
            if isinstance(answer, wanted):
                results.append((proxies[client], answer))
            else:
                why[client] = str(answer)
        return results, [ClientFailure(str(client), reason) for client, reason in why.items()]

    def _send(
        self,
        server_round: int,
        instructions: Sequence[tuple[ClientProxy, FitIns | EvaluateIns]],
        kind: str,
        timeout: float | None,
    ) -> tuple[set[int], dict[int, str], float | None]:
        """Send instructions; return who has got one, why others have not, and the seconds to reply in."""
        busy = self.messages.busy()
        contents = {int(name): content for name, content in packed(instructions).items()}
        why = {k: f"still at work on its task of round {busy[k].round}" for k in contents if k in busy}
        asked = contents.keys() - why.keys()
        deadline: float | None = None
        if timeout is None and self.deadlines is not None and asked:
            for client in asked:
                self.deadlines.meet(client, self.nodes.identity(client).seconds)
            deadline = self.deadlines.of(asked)
        limit: float | None = timeout if deadline is None else deadline + GRACE_SECONDS
        if kind == MessageType.TRAIN:
            self._deadline = deadline
        tasks: list[tuple[int, int, RecordDict]] = []
        made: dict[object, RecordDict] = {}  # what several clients are sent is stored, and brought, once
        for client in sorted(asked):
            node, scalars = self.nodes.of_client[client], self._scalars(client, kind, deadline)
            in_one = self.nodes.identity(client).one_object
            key = (id(contents[client]), *scalars.items(), in_one)
            if key not in made:
                content = with_scalars(contents[client], scalars)
                made[key] = one_object.packed(content) if in_one else content
            tasks.append((node, client, made[key]))
        gone = {*self.messages.send(tasks, kind, server_round, max(LEAST_TTL, 2 * (limit or 0.0)))}
        return asked - gone, why | dict.fromkeys(gone, "its node has gone"), limit

    def _note(self, results: Sequence[FitResult]) -> None:
        """Note who says in its reply that it leaves, or for the first time that it has no data of its own."""
        said = {
            key: {int(proxy.cid) for proxy, result in results if result.metrics.get(key) is True}
            for key in (metrics.DEPARTING, metrics.TASK_DATA)
        }
        for client in said[metrics.DEPARTING]:
            self.nodes.leave(client)
        new, self.notes = sorted(said[metrics.TASK_DATA] - self._without_data), []
        if new:
            self._without_data.update(new)
            names, more = self.nodes.names(), ", ..." if len(new) > MOST_NAMED else ""
            who = ", ".join(names.get(str(client), f"client {client}") for client in new[:MOST_NAMED])
            told = "trained on the run's data set, not on data of their own (--data)"
            self.notes = [f"{told}: {who}{more}"]

    def _scalars(self, client: int, kind: str, deadline: float | None) -> dict[str, Scalar]:
        """Return the scalars added to the instruction of a client."""
        common = {fit.RUN: self.resumed, fit.PREPROCESSING: self.preprocessing}
        scalars: dict[str, Scalar] = {key: value for key, value in common.items() if value}
        if kind == MessageType.TRAIN:
            if self.replay:
                scalars[fit.REPLAY] = True
            if deadline is not None and self.deadlines is not None:
                scalars[fit.DEADLINE_SECONDS] = round(self.deadlines.of_work(client, deadline), 3)
        return scalars

    def _answers(
        self, kind: str, server_round: int, asked: int, start: float, limit: float | None
    ) -> dict[int, FitRes | EvaluateRes | str]:
        """Wait for the clients asked; return what came of their tasks, by client."""
        answers: dict[int, FitRes | EvaluateRes | str] = {}
        enough = math.ceil(self.min_replies * asked) or asked

        def done() -> bool:
            self._collect()
            others = []
            for arrived in self._arrived:
                if (arrived.sent.kind, arrived.sent.round) == (kind, server_round):
                    answers[arrived.sent.client] = arrived.result
                else:
                    others.append(arrived)
            self._arrived = others
            good = sum(not isinstance(answer, str) for answer in answers.values())
            return len(answers) == asked or good >= enough

        self._wait(done, start, limit)
        return answers

    def _wait_for_a_free_client(self) -> None:
        """Wait until a client is free, at most a deadline: rounds must not fly past while all are at work.

        Where clients are free and none is at work, the method selects none.
        """

        def free() -> set[int]:
            return self._present() - {*self.at_work().tolist()}

        def done() -> bool:
            self._collect()
            return bool(free() - before) or any(isinstance(a.result, FitRes) for a in self._arrived)

        before, at_work = free(), self.at_work()
        if self.deadlines is not None and (len(at_work) or not before):
            self._wait(done, time.monotonic(), self.deadlines.of(at_work.tolist()))

    def _wait(self, done: Callable[[], bool], start: float, limit: float | None) -> None:
        """Wait until something is done, or `limit` seconds after the start; nodes that come are asked."""
        while not done():
            if limit is not None and time.monotonic() - start >= limit:
                return
            if self.deadlines is not None and time.monotonic() - self._looked > LOOK_SECONDS:
                self._look()
            _pause(start)

    def _present(self) -> set[int]:
        """Return the clients whose nodes are online."""
        return self.nodes.clients()

    def _look(self) -> None:
        """Note which nodes are online, and ask the new ones to identify themselves."""
        with calling_the_superlink():
            online = self.grid.get_nodes()
        self._looked = time.monotonic()
        for node in self.nodes.look(online):
            for sent in self.messages.give_up(node):
                self._arrived.append(Arrived(sent, "its node was restarted", self._looked))
        asked = self.nodes.to_ask(self._looked)
        for patience in {*asked.values()}:
            questions = [(node, UNKNOWN, WHO_ARE_YOU) for node, own in asked.items() if own == patience]
            self.messages.send(questions, QUESTION, 0, ttl=patience)

    def _collect(self) -> None:
        """Take in the messages that have come: replies, and the identities of nodes."""
        received, now = [*self.messages.receive()], time.monotonic()
        for sent, reply in received:
            taken = now - sent.time
            if sent.kind == QUESTION:
                self._meet(sent.node, reply, taken)
                continue
            result = reply if isinstance(reply, str) else unpacked(reply.content, sent.kind)
            self._arrived.append(Arrived(sent, result, now))
            if isinstance(result, FitRes):
                if self.deadlines is not None:
                    self.deadlines.learn(sent.client, taken, result.metrics.get(metrics.SECONDS))
                result.metrics.setdefault(metrics.SECONDS, taken)
                if said := of_board(result.metrics):
                    self._boards[str(sent.client)] = said

    def _meet(self, node: int, reply: Message | str, taken: float) -> None:
        """Take in the identity of a node."""
        said = reply if isinstance(reply, str) else identity(reply.content)
        if isinstance(said, str):
            late = taken > PATIENCE_SECONDS - 1  # Flower's clock and ours differ a little
            self.nodes.no_answer(node, f"no answer within {taken:.0f} s" if late else plain(said))
            return
        self.nodes.answer(node, *said, taken)


def _pause(begin: float) -> None:
    """Sleep a twentieth of the time since something began: the SuperLink spends milliseconds on an answer."""
    time.sleep(min(max(POLL_SECONDS, (time.monotonic() - begin) / 20), 5 * POLL_SECONDS))
