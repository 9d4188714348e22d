"""Which of a round's results are active replies: the part of a strategy between Flower and the method.

An *active* reply answers the task that its client has to answer, reports at least one step and one example,
and carries weights of the right shapes that are finite and not too far from those that the client was sent.
Any other is treated exactly as if nothing had come, and is named with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from flwr.common import FitRes
from numpy.typing import NDArray

from fedtide.ground.contract import REPORTED, SGD, Reported, Rule, metrics
from fedtide.ground.spill import let_go
from strategies.core.decoding import (
    MAX_EXAMPLES,
    MAX_NUMBER,
    DivergedError,
    answers,
    check_form,
    check_range,
    check_round,
    decode,
    read_number,
    read_steps,
    whole,
)
from strategies.core.instructions import OpenTasks, Sent
from strategies.core.membership import Members
from strategies.core.method import Method
from strategies.core.norms import MAX_NORM, NormLimit, norm
from strategies.core.parameters import FloatVector
from strategies.core.replies import Replies
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.results import FitResults, RoundResults, columns_of

MAX_GROWTH = 10  # times the number of examples that the client had first


class NoExamplesError(ValueError):
    """The client reports that it has no data."""


Faults = Iterator[tuple[Any, str, type[ValueError]]]


def faults_of_work(n: Any, steps: Any, planned: Any, first: Any) -> Faults:
    """Yield all that may be wrong with the work that clients report: whether it is, and the reason.

    n_k, s_k, E_k and the number of examples that a client had first (0: not known) are those of one client,
    or columns of shape (K,).
    """
    yield n == 0, "no examples", NoExamplesError
    yield (n < 0) | (n > MAX_EXAMPLES), "impossible number of examples {n}", ValueError
    growth = f"{{n}} examples, more than {MAX_GROWTH} times the {{first}} that it had first"
    yield (first > 0) & (n > MAX_GROWTH * first), growth, ValueError
    yield (steps < 0) | (steps > planned), "impossible number of steps {steps} of {planned}", ValueError
    yield steps == 0, "no local steps", ValueError


def faults_of_update(size: Any, most: Any) -> Faults:
    """Yield what may be wrong with the norms of updates, of which `most` are allowed."""
    yield ~np.isfinite(size), "weights are not finite", DivergedError
    yield size > most, "update of norm {size:.3g}, more than {most:.3g}", DivergedError


def check(faults: Faults, **values: Any) -> None:
    """Raise the first fault of a reply; `values` are named in the reasons."""
    for present, reason, kind in faults:
        if present:
            raise kind(reason.format(**values))


class Arrival(NamedTuple):
    """A reply that has been read: see the columns of `Replies`; `order` is its position."""

    reported: tuple[Any, ...]
    name: str
    sent: Sent
    order: int
    planned: int
    vector: FloatVector
    buffers: FloatVector
    extra: Sequence[NDArray[Any]]


class ReplyReader:
    """Reads the results of a round.

    Replies that come over a network are read one by one. Those of many simulated clients are checked
    together, which takes a tenth of the time; if anything is to be said about one of them, they are read one
    by one, too.
    """

    def __init__(self, method: Method, tasks: OpenTasks, membership: Members, norms: NormLimit) -> None:
        self.method, self.tasks, self.membership, self.norms = method, tasks, membership, norms

    def read(self, server_round: int, results: FitResults, asked: bool) -> Replies:
        """Return the active replies; the method's report names the others.

        `asked`: whether anybody was asked in this round, which is not over yet.
        """
        columns = columns_of(results) if asked else None
        replies = None if columns is None else self._read_columns(server_round, columns)
        if replies is None:
            replies = self._read_list(server_round, results, asked)
        lags = zip(replies.clients.tolist(), replies.sent, replies.lag.tolist(), strict=True)
        self.method.report.late += [
            {"client": client, "task": sent.round, "lag": lag}
            for client, sent, lag in lags
            if sent.round != server_round
        ]
        return replies

    def _read_columns(self, server_round: int, columns: RoundResults) -> Replies | None:
        """Read all replies of a round at once; None: something is to be said about one of them."""
        reported, roster, rule = columns.reported, self.method.roster, self._rule
        clients = reported["client"]
        if rule.sends != "weights" or rule.extra or not roster.are_registered(clients):
            return None
        found = [self.tasks.of(k, server_round) for k in clients.tolist()]
        sent = [task for task in found if task is not None]
        right = columns.layout.shapes == self.method.wire.shapes
        if len(sent) < len(found) or not right or [task.round for task in sent] != reported["round"].tolist():
            return None
        if not self._late_ones_are_taken([task for task in sent if task.round != server_round]):
            return None
        n, steps, norms = (reported[key] for key in ("num_examples", "steps", "update_norm"))
        planned = self._planned(n, sent)
        work = faults_of_work(n, steps, planned, roster.first_size[clients])
        if any(present.any() for present, *_ in work):
            return None
        update = faults_of_update(norms, MAX_NORM * steps / planned)
        if any(present.any() for present, *_ in update) or not self.norms.accept_if_usual(norms):
            return None
        vectors, buffers = columns.vectors.split(self.method.layout.size)
        if not self._are_in_range(buffers, sent):
            return None
        return self._replies(reported, sent, columns.order, planned, vectors, buffers, [()] * len(sent))

    @staticmethod
    def _are_in_range(buffers: Sequence[FloatVector], sent: Sequence[Sent]) -> bool:
        """Whether nothing is to be said about the clients' buffers."""
        with suppress(ValueError):
            for own, task in zip(buffers, sent, strict=True):
                check_range(own, task.weights.buffers)
            return True
        return False

    def _late_ones_are_taken(self, late: Sequence[Sent]) -> bool:
        """Whether the method takes all late replies to these tasks, which are weights alone."""
        with suppress(ValueError):
            for task in late:
                self._check_late(task)
                self._check(task, ())
            return True
        return False

    def _read_list(self, server_round: int, results: FitResults, asked: bool) -> Replies:
        """Read each reply by itself.

        That a client departs is believed whatever its work is worth, unless the reply is late.
        """
        report, arrivals = self.method.report, dict[int, Arrival]()
        for order, (proxy, result) in enumerate(results):
            client = self.method.roster.find(proxy.cid)
            sent = self.tasks.of(client, server_round) if asked else None
            if client is None or sent is None:
                report.reject(proxy.cid, "was not asked in this round")
                continue
            try:
                if client in arrivals:
                    raise ValueError("second reply in one round")
                check_form(result)
                if result.metrics.get(metrics.DEPARTING) is True and answers(result, sent.round):
                    self.membership.announce_departure(client)
                if sent.round != server_round:
                    self._check_late(sent)
                arrivals[client] = self._arrival(client, proxy.cid, result, sent, order)
            except ValueError as reason:
                report.reject(proxy.cid, str(reason))
                report.diverged |= isinstance(reason, DivergedError)
                if isinstance(reason, NoExamplesError):
                    self.membership.note_no_data(client)
        return self._collect([arrivals[client] for client in sorted(arrivals)])

    def _arrival(self, client: int, name: str, result: FitRes, sent: Sent, order: int) -> Arrival:
        """Check and decode one reply; a ValueError says why it is not active."""
        check_round(result, sent.round)
        answer = result.metrics
        if (n := whole(result.num_examples)) is None:
            raise ValueError(f"impossible number of examples {result.num_examples!r}")
        planned = sent.local_steps
        if planned is None:
            planned = read_steps(answer, self.method.options.planned_steps(n), metrics.PLANNED)
        steps, first = read_steps(answer, planned), int(self.method.roster.first_size[client])
        check(faults_of_work(n, steps, planned, first), n=n, steps=steps, planned=planned, first=first)
        vector, buffers, extra = decode(result.parameters, self._rule, sent.weights)
        size, most = norm(vector - self._origin(sent)), MAX_NORM * steps / planned
        let_go(vector)
        check(faults_of_update(size, most), size=size, most=most)
        self._check(sent, extra)
        told = (metrics.TRAIN_LOSS, metrics.FINAL_LOSS, metrics.RMS_LOSS, metrics.SECONDS)
        numbers = (read_number(answer, key) for key in told)
        reported = (client, sent.round, n, steps, *numbers, size, answer.get(metrics.RESYNC) is True)
        return Arrival(reported, name, sent, order, planned, vector, buffers, extra)

    @property
    def _rule(self) -> Rule:
        """Rule of the tasks that may be answered in this round."""
        return self.method.rule if self.method.probe.weights is None else SGD

    def _check_late(self, sent: Sent) -> None:
        """Refuse, by ValueError, a late reply that cannot count, given its task."""
        if not self.method.takes_late_replies:
            raise ValueError(f"late reply of round {sent.round}: {type(self.method).__name__} takes none")
        if sent.round < self.method.probe.since:
            raise ValueError(f"late reply of round {sent.round}: it is about another model")

    def _check(self, sent: Sent, extra: Sequence[NDArray[Any]]) -> None:
        """Have the method check a reply, unless it answers a probe."""
        if self.method.probe.weights is None:
            self.method.check(sent, extra)

    def _collect(self, arrivals: list[Arrival]) -> Replies:
        """Bring replies together, in the order of their clients, without those that are too large."""
        rows, names, sent, order, planned, vectors, buffers, extra = (
            [[*column] for column in zip(*arrivals, strict=True)] if arrivals else [[]] * 8
        )
        reported = np.array(rows, REPORTED)
        replies = self._replies(
            reported,
            sent,
            np.array(order, np.intp),
            np.array(planned, np.int64),
            ReplyVectors(vectors),
            buffers,
            extra,
        )
        return self.norms.screen(replies, reported["update_norm"], names, self.method.report)

    def _replies(
        self,
        reported: Reported,
        sent: Sequence[Sent],
        order: NDArray[np.intp],
        planned: NDArray[np.int64],
        vectors: ReplyVectors,
        buffers: list[FloatVector],
        extra: Sequence[Sequence[NDArray[Any]]],
    ) -> Replies:
        """Return replies, given in ascending order of their clients."""
        return Replies(
            clients=reported["client"].astype(np.intp),
            sent=sent,
            order=order,
            steps=reported["steps"].copy(),
            planned=planned,
            num_examples=reported["num_examples"].copy(),
            train_loss=_possible(reported["train_loss"]),
            final_loss=_possible(reported["final_loss"]),
            rms_loss=_possible(reported["rms_loss"]),
            seconds=_possible(reported["seconds"]),
            resync=reported["resync"].copy(),
            vectors=vectors,
            origins=[self._origin(task) for task in sent],
            buffers=buffers,
            extra=extra,
            size=self.method.layout.size,
            version=self.method.version,
        )

    def _planned(self, n: NDArray[np.int64], sent: Sequence[Sent]) -> NDArray[np.int64]:
        """E_k of clients with these numbers of examples, shape (K,)."""
        planned = np.empty(len(n), np.int64)
        planned[:] = self.method.options.planned_steps(n)
        for k, task in enumerate(sent):
            if task.local_steps is not None:
                planned[k] = task.local_steps
        return planned

    def _origin(self, sent: Sent) -> FloatVector:
        """What a client's update is counted from: nothing, if it sends the update itself."""
        return sent.weights.weights if self._rule.sends == "weights" else self._nothing

    @cached_property
    def _nothing(self) -> FloatVector:
        return np.zeros(self.method.layout.size, self.method.layout.dtype)


def _possible(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers, NaN where they are impossible."""
    return np.where(np.abs(numbers) <= MAX_NUMBER, numbers, np.nan)
