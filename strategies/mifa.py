"""MIFA: the mean of every client's latest update, also of those who are away.

Gu et al. 2021, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS,
Algorithm 1, with memory-augmented impatience: each round moves by the newest that is known of each client,

    G_i := (w_t - w_i) / eta_t  for i in S_t,     w := w - eta_t (1/N) sum_i G_i.

The entries are in units of gradients, so that old ones are applied with the current rate. A late reply is
an entry of the round in which it arrives, in gradients by the rate of its task. With `max_age`, entries are
dropped when the weights have changed too often since their task (after ACED, arXiv 2511.19066; the definition
is ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import (
    Clients,
    EmptyRound,
    FlexibleStrategy,
    Range,
    Replies,
    SummedTable,
    TableOptions,
    extend,
)


class MIFA(FlexibleStrategy):
    """Mean of all clients' latest updates, kept at the server, whoever replies: w -= eta (1/N) sum_i G_i."""

    suits = "clients that are away for long or for reasons that nobody knows"
    options: MIFAOptions
    saved = ("latest", "versions", "waiting")
    late_replies = "take"

    def setup(self) -> None:
        """Start without any entry."""
        self.latest = SummedTable(self.layout, self.options)  # G_i
        self.versions: NDArray[np.int64] = np.zeros(0, np.int64)  # of the weights that each G_i started from
        self.waiting = self.options.first_round == "wait"

    def update(self, replies: Replies) -> None:
        """Overwrite the entries of those who replied, and move by the mean of all."""
        work = replies.work_factors(self.options.normalize)
        self.latest.replace(replies, -work / replies.learning_rate)
        self.versions = extend(self.versions, int(replies.clients.max()) + 1, 0)
        self.versions[replies.clients] = self.version - replies.lag
        self._move()

    def empty_round(self) -> None:
        """Move by the mean of the old entries, with `move`."""
        if self.options.empty == "move":
            self._move()

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Forget the entries of those who left."""
        for client in left.tolist():
            self.latest.drop(client)

    def _move(self) -> None:
        """Apply w -= eta_t (1/N) sum_i G_i, unless the first entry of a member is being waited for."""
        self.waiting = self.waiting and self._some_are_missing()
        if self.waiting:
            return
        aged = self.options.max_age >= 0
        if aged:
            self._drop_old()
        if not len(self.latest):
            return
        seen = aged or self.options.first_round == "seen"
        count = len(self.latest) if seen else max(1, self.roster.num_contributors)
        self.weights -= self.learning_rate / count * self.latest.total

    def _drop_old(self) -> None:
        """Forget the entries that are too old: they get no younger."""
        clients = self.latest.clients
        for client in clients[self.version - self.versions[clients] > self.options.max_age].tolist():
            self.latest.drop(client)

    def _some_are_missing(self) -> bool:
        """Whether there is no entry of a member that may still reply."""
        expected = np.flatnonzero(self.roster.contributors & ~self.roster.departed)
        return not np.isin(expected, self.latest.clients).all()


@dataclass(frozen=True, kw_only=True)
class MIFAOptions(TableOptions):
    """Options of MIFA.

    Attributes
    ----------
    first_round
        The paper has all clients reply in the first round. Otherwise: `zeros` divides by N from the start, as
        if a client never seen had sent 0; `wait` does not move before every member that is still there was
        seen once (the authors' FDUTrainer, without training all of them once more); `seen` divides by the
        clients seen.
    max_age
        How often the weights may have changed since the task of an entry that counts; the step is then the
        mean of those that do. -1: all count.
    normalize
        Scale incomplete work by E / s_i; the paper has no incomplete clients, `false` takes it as it is.
    empty
        In a round without replies: `skip` rests, `move` applies the memory once more (the paper).
    """

    first_round: Literal["zeros", "wait", "seen"] = "zeros"
    max_age: Annotated[int, Range(least=-1)] = -1
    normalize: bool = True
    empty: EmptyRound = "skip"
