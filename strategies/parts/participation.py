"""How often a client takes part, known or estimated without its probability.

omega_k is the mean of the client's intervals between participations, intervals longer than a cut-off being
cut (Wang & Ji 2024, "FedAU"). It estimates 1 / (probability of taking part); with a cut-off K,
(1 - (1 - p)^K) / p. Or it is the inverse of the share of rounds in which the client took part (Sun et al.
2025, "Debiasing Federated Learning with Correlated Client Participation").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from strategies import ByClient, Clients, Options, Replies, Roster

Counts = NDArray[np.int64]


def inverse_rates(
    estimator: str, intervals: Intervals, roster: Roster, replies: Replies, server_round: int
) -> NDArray[np.float64]:
    """omega_k of clients that take part in a round: 1 / (probability of taking part), shape (K,).

    `estimator`: `fedau` takes it from the intervals before this round, `frequency` from those up to it, of
    which none may be cut, `known` from what the roster knows of the round of the task, which for a late reply
    is an earlier one; `none` is 1.
    """
    clients = replies.clients
    if estimator == "fedau":
        return intervals.means(clients, server_round)
    if estimator == "frequency":
        return intervals.inverse_frequencies(clients, server_round)
    if estimator == "none":
        return np.ones(len(clients))
    known = {t: np.asarray(roster.participation(t)) for t in {task.round for task in replies.sent}}
    asked = zip(clients.tolist(), replies.sent, strict=True)
    return np.array([1 / known[task.round][client] for client, task in asked])


def check_estimator(estimator: str, options: Options, roster: Roster) -> None:
    """Raise ValueError if the probabilities of taking part are to be known, and are not."""
    if estimator != "known":
        return
    if options.clients_per_round:
        raise SettingsError(
            "estimator is 'known', which needs all clients that are available: set clients-per-round 0"
        )
    if roster.participation(1) is None:
        raise SettingsError(
            "estimator is 'known', but the probabilities of taking part are not; use a trace that has them, "
            "such as bernoulli, rates or labels, or estimator=fedau"
        )


class Intervals(ByClient):
    """The intervals of all members, in closed form: a round costs as much as the clients that reply.

    `cutoff` is K, the longest interval; 0: none is cut.
    """

    saved = ("start", "last", "ended")

    def __init__(self, cutoff: int) -> None:
        self.cutoff = cutoff
        self.start: Counts = np.zeros(0, np.int64)  # round before each client's first one as a member, (N,)
        self.last: Counts = np.zeros(0, np.int64)  # last round in which it took part; `start` before
        self.ended: Counts = np.zeros(0, np.int64)  # M_k up to then: how many intervals have ended

    def reset(self, clients: Clients, server_round: int) -> None:
        """Begin the first interval of clients with this round."""
        self.extend(int(clients.max(initial=-1)) + 1)
        self.start[clients] = self.last[clients] = server_round - 1
        self.ended[clients] = 0

    def means(self, clients: Clients, server_round: int) -> NDArray[np.float64]:
        """omega_k before this round, 1 where no interval has ended, shape (K,)."""
        self.extend(int(clients.max(initial=-1)) + 1)
        start, last, ended = self.start[clients], self.last[clients], self.ended[clients]
        cuts = (server_round - 1 - last) // self.cutoff if self.cutoff else np.zeros_like(last)
        total, count = last - start + self.cutoff * cuts, ended + cuts
        return np.where(count > 0, total / np.maximum(count, 1), 1.0)

    def inverse_frequencies(self, clients: Clients, server_round: int) -> NDArray[np.float64]:
        """Rounds as a member per participation, this round in both, without a cut-off; shape (K,)."""
        self.extend(int(clients.max(initial=-1)) + 1)
        return np.asarray((server_round - self.start[clients]) / (self.ended[clients] + 1))

    def observe(self, clients: Clients, server_round: int) -> None:
        """End the intervals of those who take part in this round."""
        self.extend(int(clients.max(initial=-1)) + 1)
        gaps = server_round - self.last[clients]
        self.ended[clients] += -(-gaps // self.cutoff) if self.cutoff else 1
        self.last[clients] = server_round
