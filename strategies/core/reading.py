"""Which of a round's replies count: the part of a strategy between Flower and the method.

An *active* reply answers the task that its client has to answer, reports at least one step and one example,
and carries weights of the right shapes that are finite and not too far from those that the client was sent.
Any other is treated exactly as if nothing had come, and is named with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.common import FitRes
from numpy.typing import NDArray

from fedtide.base.contract import SGD, metrics
from fedtide.base.spill import let_go
from strategies.core.norms import MAX_NORM, norm
from strategies.core.parameters import (
    MAX_EXAMPLES,
    MAX_NUMBER,
    DivergedError,
    FloatVector,
    answers,
    check_range,
    check_round,
    decode,
    is_reply,
    read_arrays,
    read_number,
    read_steps,
    whole,
)
from strategies.core.replies import Arrays, Replies, ReplyTable
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import Sent

if TYPE_CHECKING:
    from strategies.core.strategy import FlexibleStrategy

MAX_GROWTH = 10  # times the number of examples that the client had first
LARGEST = 2**62  # number that a client is believed to mean
LOSSES = ("train_loss", "final_loss", "rms_loss", "seconds")
NOT_ASKED = "was not asked in this round"


class Verdict:
    """Which rows of a table count, a mask of shape (K,), and the reasons for which the others do not."""

    def __init__(self, table: ReplyTable) -> None:
        self.reasons: dict[int, str] = {}
        self.counts = np.ones(len(table), bool)
        self.diverged = False

    @property
    def rows(self) -> NDArray[np.intp]:
        """Those that count so far."""
        return np.flatnonzero(self.counts)

    def refuse(self, k: int, reason: object) -> None:
        """Refuse a row; an error is its own reason."""
        self.counts[k], self.reasons[k] = False, str(reason)
        self.diverged |= isinstance(reason, DivergedError)

    def refuse_where(self, wrong: Any, reason: str, **columns: NDArray[Any]) -> list[int]:
        """Refuse rows by a mask, shape (K,), and return them; the reason names values of columns."""
        if not (newly := wrong & self.counts).any():
            return []
        refused: list[int] = np.flatnonzero(newly).tolist()
        for k in refused:
            self.refuse(k, reason.format(**{name: column[k] for name, column in columns.items()}))
        return refused


class ReplyReader:
    """Reads the replies of a round: all of them at once, as far as they came from simulated clients."""

    def __init__(self, method: FlexibleStrategy, server_round: int) -> None:
        self.method, self.round = method, server_round
        self.tasks, self.membership = method.tasks, method.membership
        self.rule = method.rule if method.probed is None else SGD  # of the tasks that may be answered

    def farewells(self, table: ReplyTable) -> tuple[Mapping[str, Arrays], ReplyTable]:
        """Return what clients hand in as they leave, by their names, and the replies of the others."""
        leaving = self.membership.awaiting_farewell if self.tasks.round == self.round else []
        if not (leaving and table.results):
            return table.farewells, table
        states, others = dict[str, Arrays](), list[int]()
        for k, (name, result) in enumerate(zip(table.names, table.results, strict=True)):
            if self.method.roster.find(name) not in leaving:
                others.append(k)
                continue
            try:
                if name in states:
                    raise ValueError("second farewell")
                check_round(result, self.round)
                states[name] = read_arrays(result.parameters)
            except ValueError as reason:
                self.method.report.reject(name, str(reason))
        return states, table.chosen(np.array(others, np.intp))

    def read(self, table: ReplyTable) -> Replies:
        """Return the active replies; the method's report names the others."""
        roster, report = self.method.roster, self.method.report
        if table.results:
            found = [roster.find(name) for name in table.names]
            table.reported["client"] = [-1 if client is None else client for client in found]
        clients = table.reported["client"]
        tasks = [self.tasks.of(client, self.round) for client in clients.tolist()]
        for k in [k for k, task in enumerate(tasks) if task is None]:
            report.reject(table.name(k), NOT_ASKED)
        order = np.argsort(clients, kind="stable")
        order = order[[tasks[k] is not None for k in order.tolist()]]
        sent = [task for k in order.tolist() if (task := tasks[k]) is not None]
        table = table.chosen(order)
        verdict, rows = Verdict(table), table.reported.copy()
        planned = self._planned(rows["num_examples"], sent)
        for k, result in enumerate(table.results):
            try:
                rows[k], planned[k] = self._numbers(int(rows["client"][k]), result, sent[k])
            except ValueError as error:
                verdict.refuse(k, error)
        self._hear_departures(rows["client"], table, sent)
        self._judge_work(verdict, rows, planned, sent)
        vectors, buffers, extra = self._decoded(verdict, table, sent, rows["update_norm"])
        self._judge_updates(verdict, rows, planned)
        self._judge_by_method(verdict, sent, extra)
        factors = self._screen(verdict, rows)
        for k, reason in sorted(verdict.reasons.items()):
            report.reject(table.name(k), reason)
        report.diverged |= verdict.diverged
        self._note_discarded(table, rows, sent)
        for key in LOSSES:
            rows[key][~(np.abs(rows[key]) <= MAX_NUMBER)] = np.nan
        counted = verdict.rows
        kept = counted.tolist()
        replies = Replies(
            reported=rows[counted],
            planned=planned[counted],
            sent=[sent[k] for k in kept],
            order=order[counted],
            vectors=vectors if verdict.counts.all() else vectors.chosen(kept),
            origins=self._origins([sent[k] for k in kept]),
            buffers=[buffers[k] for k in kept],
            extra=[extra[k] for k in kept],
            size=self.method.layout.size,
            version=self.method.version,
        )
        for position, factor in factors.items():
            replies.scale(position, factor)
        for k in np.flatnonzero(replies.reported["round"] != self.round).tolist():
            client, task = int(replies.clients[k]), replies.sent[k]
            report.late.append({"client": client, "task": task.round, "lag": int(replies.lag[k])})
        return replies

    def _hear_departures(self, clients: NDArray[np.intp], table: ReplyTable, sent: Sequence[Sent]) -> None:
        """Note who says that it leaves, whatever its work is worth, in the first reply to its task."""
        heard = set[int]()
        for client, result, task in zip(clients.tolist(), table.results, sent, strict=False):
            if client in heard or not is_reply(result) or not answers(result, task.round):
                continue
            heard.add(client)
            if result.metrics.get(metrics.DEPARTING) is True:
                self.membership.announce_departure(client)

    def _numbers(self, client: int, result: FitRes, sent: Sent) -> tuple[tuple[Any, ...], int]:
        """Return what a client reports as a row of `REPORTED`, and its E_k, or raise ValueError."""
        check_round(result, sent.round)
        answer, n = result.metrics, whole(result.num_examples)
        if n is None:
            raise ValueError(f"impossible number of examples {result.num_examples!r}")
        n, planned = _believable(n), sent.local_steps
        if planned is None:
            planned = _believable(read_steps(answer, self.method.options.planned_steps(n), metrics.PLANNED))
        steps = _believable(read_steps(answer, planned))
        told = (metrics.TRAIN_LOSS, metrics.FINAL_LOSS, metrics.RMS_LOSS, metrics.SECONDS)
        numbers = (read_number(answer, key) for key in told)
        resync = answer.get(metrics.RESYNC) is True
        return (client, sent.round, n, steps, *numbers, np.nan, resync), planned

    def _judge_work(
        self, verdict: Verdict, rows: NDArray[Any], planned: NDArray[np.int64], sent: Sequence[Sent]
    ) -> None:
        """Refuse replies by their tasks, and by the work that the clients report."""
        for k, task in enumerate(sent):
            if task.round != self.round and verdict.counts[k] and (reason := self._why_too_late(task)):
                verdict.refuse(k, reason)
        task_rounds, n, steps = np.array([task.round for task in sent]), rows["num_examples"], rows["steps"]
        verdict.refuse_where(rows["round"] != task_rounds, "late reply of round {of}", of=rows["round"])
        first = self.method.roster.first_size[rows["client"]]
        for k in verdict.refuse_where(n == 0, "no examples"):
            self.membership.note_no_data(int(rows["client"][k]))
        verdict.refuse_where((n < 0) | (n > MAX_EXAMPLES), "impossible number of examples {n}", n=n)
        growth = f"{{n}} examples, more than {MAX_GROWTH} times the {{first}} that it had first"
        verdict.refuse_where((first > 0) & (n > MAX_GROWTH * first), growth, n=n, first=first)
        steps_of = "impossible number of steps {steps} of {planned}"
        verdict.refuse_where((steps < 0) | (steps > planned), steps_of, steps=steps, planned=planned)
        verdict.refuse_where(steps == 0, "no local steps")

    def _why_too_late(self, task: Sent) -> str:
        """Why a late reply to this task cannot count; empty: it can."""
        if not self.method.takes_late_replies:
            return f"late reply of round {task.round}: {type(self.method).__name__} takes none"
        model = self.method.initial_model
        if model is not None and task.round < model.since:
            return f"late reply of round {task.round}: it is about another model"
        lag, limit = self.method.version - task.version, self.method.options.max_lag
        if 0 <= limit < lag:
            return f"late reply of round {task.round}: its lag is {lag}, max-lag is {limit}"
        return ""

    def _note_discarded(self, table: ReplyTable, rows: NDArray[Any], sent: Sequence[Sent]) -> None:
        """Note what is lost with the replies whose lag is too large."""
        for k, task in enumerate(sent):
            lag, seconds = self.method.version - task.version, float(rows["seconds"][k])
            if 0 <= self.method.options.max_lag < lag:
                of_task = {"client": int(rows["client"][k]), "task": task.round, "lag": lag}
                lost = {"steps": int(rows["steps"][k]), "bytes": table.row_bytes(k)}
                known = seconds if math.isfinite(seconds) else None
                self.method.report.discarded.append({**of_task, **lost, "seconds": known})

    def _decoded(
        self, verdict: Verdict, table: ReplyTable, sent: Sequence[Sent], norms: NDArray[np.float64]
    ) -> tuple[ReplyVectors, list[FloatVector], list[Arrays]]:
        """Return each client's weights or update, its buffers, and the method's arrays; complete the norms.

        Clients that send weights alone, in one layout, are read together: their vectors stay where they lie.
        """
        method, nothing = self.method, np.empty(0)
        extra: list[Arrays] = [()] * len(table)
        alike = self.rule.sends == "weights" and table.layout.shapes == method.wire.shapes
        if alike and not (table.results or table.extra):
            vectors, buffers = table.vectors.split(method.layout.size)
            for k in verdict.rows.tolist() if method.wire.num_buffers else ():
                try:
                    check_range(buffers[k], sent[k].weights.buffers)
                except ValueError as reason:
                    verdict.refuse(k, reason)
            for k in np.flatnonzero(norms < 0).tolist():  # not reported
                norms[k] = norm(vectors[k] - sent[k].weights.weights)
            return vectors, buffers, extra
        found, buffers = [nothing] * len(table), [nothing] * len(table)
        for k in verdict.rows.tolist():
            try:
                found[k], buffers[k], extra[k] = decode(table.sent(k), self.rule, sent[k].weights)
            except ValueError as reason:
                verdict.refuse(k, reason)
                continue
            (origin,) = self._origins([sent[k]])
            norms[k] = norm(found[k] - origin)
            let_go(found[k])
        return ReplyVectors(found), buffers, extra

    def _judge_updates(self, verdict: Verdict, rows: NDArray[Any], planned: NDArray[np.int64]) -> None:
        """Refuse updates that are not finite, or too large for the work that was done."""
        size = rows["update_norm"]
        most = MAX_NORM * rows["steps"] / np.maximum(planned, 1)
        far = verdict.refuse_where(~np.isfinite(size), "weights are not finite")
        far += verdict.refuse_where(
            size > most, "update of norm {size:.3g}, more than {most:.3g}", size=size, most=most
        )
        verdict.diverged |= bool(far)

    def _judge_by_method(self, verdict: Verdict, sent: Sequence[Sent], extra: Sequence[Arrays]) -> None:
        """Have the method refuse replies, unless they answer a probe."""
        if self.method.probed is not None or not self.method.overrides("check"):
            return
        for k in verdict.rows.tolist():
            try:
                self.method.check(sent[k], extra[k])
            except ValueError as reason:
                verdict.refuse(k, reason)

    def _screen(self, verdict: Verdict, rows: NDArray[Any]) -> dict[int, float]:
        """Refuse second replies and updates that are far larger than usual.

        Returns the factors by which others are scaled down, by their positions among the replies that count.
        """
        counted = verdict.rows
        clients = rows["client"][counted]
        for k in counted[1:][clients[1:] == clients[:-1]].tolist():
            verdict.refuse(k, "second reply in one round")
        counted = verdict.rows
        clients, norms = rows["client"][counted], rows["update_norm"][counted]
        refused, factors = self.method.norms.screen(clients, norms, self.method.report)
        for position, reason in refused.items():
            verdict.refuse(int(counted[position]), reason)
        return factors

    def _planned(self, n: NDArray[np.int64], sent: Sequence[Sent]) -> NDArray[np.int64]:
        """E_k of clients with these numbers of examples, shape (K,)."""
        planned = np.empty(len(n), np.int64)
        planned[:] = self.method.options.planned_steps(n)
        for k, task in enumerate(sent):
            if task.local_steps is not None:
                planned[k] = task.local_steps
        return planned

    def _origins(self, sent: Sequence[Sent]) -> list[FloatVector]:
        """What clients' updates are counted from: nothing, if they send the updates themselves."""
        if self.rule.sends == "weights":
            return [task.weights.weights for task in sent]
        return [self._nothing] * len(sent)

    @cached_property
    def _nothing(self) -> FloatVector:
        return np.zeros(self.method.layout.size, self.method.layout.dtype)


def _believable(number: int) -> int:
    """Return a number that fits into a column."""
    return max(-LARGEST, min(number, LARGEST))
