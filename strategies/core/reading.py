"""Which of a round's results are active replies: the part of a strategy between Flower and the method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.contract import metrics
from strategies.core.decoding import DivergedError, NoExamplesError, answers, check_form, read_reply
from strategies.core.membership import Membership
from strategies.core.method import Method
from strategies.core.norms import NormLimit
from strategies.core.parameters import FlatParameters, FloatVector, Layout
from strategies.core.replies import Replies, Reply
from strategies.core.results import FitResults, columns_of, ordinary
from strategies.core.tasks import OpenTasks


class RepliesRead(Method):
    """A method whose clients' results are checked and decoded.

    Attributes
    ----------
    wire, layout
        Layouts of what is sent, and of the weights alone.
    buffers
        The model's buffers, all in one vector.
    membership
        Learns who departs, and who has no data.
    tasks
        What the clients were sent.
    norms
        Which updates are too large.
    """

    wire: Layout
    layout: Layout
    buffers: NDArray[np.float64]
    membership: Membership
    tasks: OpenTasks
    norms: NormLimit

    def read(self, server_round: int, results: FitResults, asked: bool) -> Replies:
        """Keep the active replies; the report names the others.

        Parameters
        ----------
        server_round
            The round.
        results
            What has come.
        asked
            Whether anybody was asked in this round, which is not over yet.
        """
        together = self._together(server_round, results) if asked else None
        return self._one_by_one(server_round, results, asked) if together is None else together

    def pack(self, weights: FloatVector) -> FlatParameters:
        """Return weights, shape (M,), as clients get them: with the model's buffers, if it has any."""
        if not len(self.buffers):
            return FlatParameters(weights.astype(self.layout.dtype, copy=False), self.layout)
        return FlatParameters(np.concatenate([weights, self.buffers]).astype(self.wire.dtype), self.wire)

    def _together(self, server_round: int, results: FitResults) -> Replies | None:
        """Read all replies of a round at once; None: each has to be read by itself, see `ordinary`."""
        columns = columns_of(results)
        if columns is None or self.rule.sends != "weights" or self.rule.extra:
            return None
        clients = columns.reported["client"]
        sent = self.tasks.of_all(clients, server_round)
        if sent is None or not self.roster.are_registered(clients):
            return None
        if any(self.start(client) is not None for client in clients.tolist()):
            return None
        replies = ordinary(columns, sent, self.roster.first_size[clients], self.work, self.version)
        passed = replies is not None and self.norms.let_pass(columns.reported["update_norm"])
        return replies if passed else None

    def _one_by_one(self, server_round: int, results: FitResults, asked: bool) -> Replies:
        """Read each reply by itself.

        That a client departs is believed whatever its work is worth, unless the reply is late.
        """
        active: dict[int, Reply] = {}
        names: dict[int, str] = {}
        for proxy, result in results:
            client = self.roster.find(proxy.cid)
            sent = self.tasks.of(client, server_round) if asked else None
            if client is None or sent is None:
                self.report.reject(proxy.cid, "was not asked in this round")
                continue
            try:
                if client in active:
                    raise ValueError("second reply in one round")
                check_form(result)
                if result.metrics.get(metrics.DEPARTING) is True and answers(result, sent.round):
                    self.membership.announce_departure(client)
                if sent.round != server_round:
                    self.check_late(sent)
                own = self.start(client)
                sent = sent if own is None else sent._replace(weights=self.pack(own.vector))
                first_size = int(self.roster.first_size[client])
                reply = read_reply(client, result, sent, self.rule, self.work, first_size)
                self.check_extra(list(reply.extra))
                active[client], names[client] = reply, proxy.cid
            except ValueError as reason:
                self.report.reject(proxy.cid, str(reason))
                self.report.diverged |= isinstance(reason, DivergedError)
                if isinstance(reason, NoExamplesError):
                    self.membership.learn_data_less(client)
            else:
                if sent.round != server_round:
                    lag = self.version - sent.version
                    self.report.late.append({"client": client, "task": sent.round, "lag": lag})
        self.report.late.sort(key=lambda entry: entry["client"])
        active = self.norms.screen(active, names, self.report)
        return Replies.collect(active, self.layout.size, self.version)
