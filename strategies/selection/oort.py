"""Oort: clients with large losses and fast replies, now and then one that nothing is known of.

Lai et al. 2021, "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI, Algorithm 1. Of
each client the last reply is known: its utility u_k = n_k times the root mean square of its losses, D_k, the
seconds that it took, and L_k, its round. In round t, m clients are asked:

    e = m (1 - epsilon) of those known, drawn in proportion to their score from all that have at least 0.7
    times the score of the e-th best; score_k = u_k, capped and scaled to 0..1, + sqrt(0.1 ln t / L_k), and
    if D_k > T, that times (T / D_k)^2;
    the others of those who are not known, in proportion to n_k.

The pacer allows longer replies, a larger T, where utility has stopped growing. The authors' program takes the
whole part of m (1 - epsilon), with which a single free slot would never be used for a client that is known;
here the rest of one round is added in the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from strategies import ByClient, Clients, Count, Positive, Range, Replies, Roster, Selection, Share

_CUTOFF = 0.7  # of the score of the e-th best: who has as much may be asked
_LEAST = 0.999  # of the smallest utility, which so scales to a little more than 0
_NARROWEST = 1e-4  # range of utilities
_UNCERTAINTY = 0.1
_PENALTY = 2  # exponent of T / D_k
_CANDIDATES = 5  # unknown clients among which one is drawn
_STALLED, _RISEN = 0.1, 5.0  # relative changes of the sum of utilities

Percentile = Annotated[float, Range(above=0, most=100)]


class Known(ByClient):
    """What is known of clients: the last reply or failure of each."""

    saved = ("utility", "seconds", "round")

    def __init__(self) -> None:
        self.utility: NDArray[np.float64] = np.zeros(0)  # u_k
        self.seconds: NDArray[np.float64] = np.zeros(0)  # D_k; NaN: not measured
        self.round: NDArray[np.int64] = np.zeros(0, np.int64)  # L_k; 0: the client is not known


class Oort(Selection):
    """Large losses and fast replies, and a share of clients that nothing is known of.

    Parameters
    ----------
    roster, seed
        See `Selection`.
    explore, decay, least
        epsilon, the share of unknown clients: at first, its factor in each round, and its lower bound.
    clip
        Share of the utilities that are not capped.
    percentile
        T is this percentile of all D_k; 100: no client is too slow.
    pacer, delta
        Rounds between two looks at the utility, and by how much these change the percentile, of which `delta`
        is also the lower bound.
    """

    saved = ("known", "explore", "carry", "percentile", "history")

    def __init__(
        self,
        roster: Roster,
        seed: int,
        *,
        explore: Share = 0.9,
        decay: Share = 0.95,
        least: Share = 0.2,
        clip: Share = 0.98,
        percentile: Percentile = 100.0,
        pacer: Count = 20,
        delta: Positive = 5.0,
    ) -> None:
        super().__init__(roster, seed)
        self.explore, self.decay, self.least = explore, decay, least
        self.clip, self.percentile, self.pacer, self.delta = clip, percentile, pacer, delta
        self.known = Known()
        self.carry = 0.0  # what is left of m (1 - epsilon)
        self.history: list[float] = []  # the mean utility in each of the last 2 * pacer rounds

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        """Exploit, then explore; if there are too few to explore, fill up uniformly."""
        self.known.extend(len(self.roster))
        is_known = self.known.round[eligible] > 0
        known, unknown = eligible[is_known], eligible[~is_known]
        self.explore = max(self.decay * self.explore, self.least)
        self.carry += count * (1 - (self.explore if len(unknown) else 0.0))
        exploited = min(int(self.carry), count, len(known))
        self.carry %= 1
        chosen = known[:0]
        if exploited:
            score = self.scores(known, server_round)
            best = np.argsort(-score, kind="stable")
            enough = _CUTOFF * score[best[min(exploited, len(best) - 1)]]
            near = best[score[best] >= enough]
            chosen = rng.choice(known[near], exploited, replace=False, p=score[near] / score[near].sum())
        if len(unknown) and len(chosen) < count:
            chosen = np.concatenate([chosen, self._explored(unknown, count - len(chosen), rng)])
        if len(chosen) < count:
            others = np.setdiff1d(eligible, chosen)
            chosen = np.concatenate([chosen, rng.choice(others, count - len(chosen), replace=False)])
        return np.asarray(chosen)

    def scores(self, clients: Clients, server_round: int) -> NDArray[np.float64]:
        """Return the score of clients that are known, shape (K,)."""
        u, D, L = (column[clients] for column in (self.known.utility, self.known.seconds, self.known.round))
        ascending, least = np.sort(u), min(_LEAST * u.min(), u.min())  # losses may be negative
        cap = ascending[min(int(self.clip * len(u)), len(u) - 1)]
        score = (np.minimum(u, cap) - least) / max(float(ascending[-1] - least), _NARROWEST)
        score += np.sqrt(_UNCERTAINTY * np.log(server_round) / L)
        slow = (T := self.preferred()) < D  # False for NaN
        score[slow] *= (T / D[slow]) ** _PENALTY
        return np.asarray(score)

    def preferred(self) -> float:
        """Return T, the seconds above which a reply is slow."""
        measured = np.sort(self.known.seconds[np.isfinite(self.known.seconds)])
        if self.percentile >= 100 or not len(measured):
            return np.inf
        return float(measured[min(int(len(measured) * self.percentile / 100), len(measured) - 1)])

    def _explored(self, unknown: Clients, count: int, rng: np.random.Generator) -> Clients:
        """Draw clients that are not known from those of them with the most data."""
        share = self.roster.share(unknown)
        most = np.argsort(-share, kind="stable")[: _CANDIDATES * count]
        if not share[most].any():  # all without examples, as far as is known
            share = np.ones(len(unknown))
        p = share[most] / share[most].sum()
        return np.asarray(rng.choice(unknown[most], min(count, len(most)), replace=False, p=p))

    def note(self, server_round: int, replies: Replies, failed: Mapping[int, float]) -> None:
        """Note the replies; who fails is known from then on, with the mean utility of the round."""
        known, clients = self.known, replies.clients
        known.extend(len(self.roster))
        loss = np.where(np.isnan(replies.rms_loss), replies.train_loss, replies.rms_loss)
        with np.errstate(over="ignore"):
            utility = replies.num_examples * loss
        is_usable = np.isfinite(utility)
        mean = float(utility[is_usable].mean()) if is_usable.any() else 0.0
        known.utility[clients] = np.where(is_usable, utility, mean)
        known.seconds[clients], known.round[clients] = replies.seconds, server_round
        for client, seconds in failed.items():
            known.utility[client], known.seconds[client] = mean, seconds
            known.round[client] = server_round
        self.history = [*self.history, mean][-2 * self.pacer :]
        self._pace(server_round)

    def _pace(self, server_round: int) -> None:
        """Allow slower clients where the utility stalls, fewer of them where it has risen a lot."""
        if server_round % self.pacer or server_round < 2 * self.pacer:
            return
        before, last = sum(self.history[: -self.pacer]), sum(self.history[-self.pacer :])
        change = abs(last - before)
        if change <= _STALLED * before:
            self.percentile = min(self.percentile + self.delta, 100.0)
        elif change >= _RISEN * before:
            self.percentile = max(self.percentile - self.delta, min(self.delta, self.percentile))

    def forget(self, client: int) -> None:
        self.known.forget(client)
