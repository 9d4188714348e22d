"""F3AST: clients are selected by how rarely they could be so far, and weighted by the inverse.

Ribero, Vikalo, de Veciana 2022, "Federated Learning Under Intermittent Client Availability and Time-Varying
Communication Constraints", IEEE JSTSP. With r_k the share of rounds in which client k took part, as far as
they are remembered,

    S := the K available clients with the largest p_k / r_k,
    r_k := (1 - b) r_k + b [k in S and accepted]  for every member,
    w := w + eta_g sum_{k in S} (p_k / r_k) delta_k  with the new r_k.

A late reply is accepted in the round in which it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from strategies import Clients, FlexibleStrategy, Range, Replies, Selection, Vector, extend
from strategies.fedavg import FedAvgOptions


class F3AST(FlexibleStrategy):
    """Selects who took part least for its share p_k, and weighs updates by p_k / r_k."""

    suits = "a server that may ask few of many clients, some of them rarely there"
    options: F3ASTOptions
    saved = ("rates", "decay", "new")
    late_replies = "take"

    def setup(self) -> None:
        """Start with all members as new ones: they get a first rate before the first selection."""
        self.rates: Vector = np.ones(len(self.roster))  # r_k / decay
        self.decay = 1.0  # of all rates together, so that a round need not change them all
        self.new: list[int] = np.flatnonzero(self.roster.member).tolist()

    def rate(self, clients: Clients) -> Vector:
        """r_k of some clients, shape (K,)."""
        return self.decay * self.rates[clients]

    def observe(self, available: Clients) -> None:
        """Start the rates of new members."""
        self._start_rates()

    def own_selection(self) -> Selection:
        """S, by the rates so far."""
        return LeastRepresented(self)

    def update(self, replies: Replies) -> None:
        """Bring the rates up to date, and divide by them."""
        clients, options = replies.clients, self.options
        self._observe(clients)
        work = replies.work_factors(options.normalize)
        scale = max(1, self._replies_of_a_round) if options.scale == "k" else 1
        p = self.roster.share(clients, options.weights)
        self.weights += options.server_rate * replies.weighted_sum(p / self.rate(clients) * work / scale)

    def empty_round(self) -> None:
        """Let the rates decay; the weights stay."""
        self._observe(np.empty(0, np.intp))

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Start new members with a first rate, for the new N."""
        self.new += arrived.tolist()

    def _observe(self, clients: Clients) -> None:
        """r_k := (1 - b) r_k + b [k accepted]."""
        self._start_rates()
        b = self.options.rate_memory
        self.decay *= 1 - b
        if self.decay < 1e-100:  # so that r_k / decay stays finite
            self.rates *= self.decay
            self.decay = 1.0
        self.rates[clients] += b / self.decay

    @property
    def _replies_of_a_round(self) -> int:
        """K, or in event time B if that is less; 0: as many as there are."""
        return min(filter(None, (self.options.clients_per_round, self.options.round_ends)), default=0)

    def _start_rates(self) -> None:
        """Give r_0 to the new members."""
        if not self.new:
            return
        new, options = np.array(self.new, np.intp), self.options
        self.rates, self.new = extend(self.rates, int(new.max()) + 1, 1), []
        N = max(1, self.roster.num_contributors)
        K = self._replies_of_a_round or N
        first = self.roster.share(new, options.weights) if options.r0 == "p" else np.ones(len(new))
        if options.r0 == "uniform":
            first *= min(1.0, K / N)
        self.rates[new] = first / self.decay


class LeastRepresented(Selection):
    """The clients with the largest p_k / r_k, of equal ones those with the lower index."""

    def __init__(self, method: F3AST) -> None:
        super().__init__(method.roster, method.options.seed)
        self.method = method

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        weights, rates = self.method.options.weights, self.method.rates
        with np.errstate(divide="ignore"):  # nobody has been there yet: infinitely many are due
            score = self.roster.share(eligible, weights) / rates[eligible]
        least = np.partition(score, -count)[-count]
        above, equal = np.flatnonzero(score > least), np.flatnonzero(score == least)
        return np.asarray(eligible[np.concatenate([above, equal[: count - len(above)]])])


@dataclass(frozen=True, kw_only=True)
class F3ASTOptions(FedAvgOptions):
    """Options of F3AST; K is `clients_per_round`, or in event time `round_ends` if that is less.

    Attributes
    ----------
    rate_memory
        b, the weight of the newest round in the rates.
    r0
        First rate of a member: `uniform` is min(1, K / N), `p` its share p_k (the authors' code), `one` is 1.
    scale
        `one` adds the weighted updates up (the paper), `k` divides them by K (the authors' code).
    normalize
        Scale incomplete work by E / s_k; `false` takes it as it is.
    """

    rate_memory: Annotated[float, Range(above=0, most=1)] = 0.01
    r0: Literal["uniform", "p", "one"] = "uniform"
    scale: Literal["one", "k"] = "one"
    normalize: bool = True
