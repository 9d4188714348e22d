"""Clients that stay online, or offline, for several rounds in a row."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import SeededTrace, check_at_least


class Markov(SeededTrace):
    """A two-state Markov chain per client, given by the mean lengths of its spells online and offline.

    An online client goes offline before the next round with probability 1 / on, and an offline one comes back
    with probability 1 / off, so that the lengths of spells are geometric. The first round is drawn from the
    stationary distribution: a fraction on / (on + off) is online. Online clients complete all their steps.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    on, off : float
        Mean length of a spell in rounds, at least 1.

    Raises
    ------
    ValueError
        If a mean length is below 1.

    Notes
    -----
    The chain is not simulated from the first round on. Rounds 1, 2, 4, 8, ... are each drawn given the one
    before; any other round, t = h * odd with h a power of two, is drawn given rounds t - h and t + h. Thus a
    single round takes O(log t) draws, and consecutive rounds about one each.
    """

    def __init__(self, num_clients: int, seed: int, *, on: float = 10.0, off: float = 10.0) -> None:
        super().__init__(num_clients, seed)
        check_at_least("markov", "on", on, 1)
        check_at_least("markov", "off", off, 1)
        self._online_fraction = on / (on + off)
        self._memory = 1 - 1 / on - 1 / off  # the second eigenvalue: correlation of successive rounds
        self._online = lru_cache(maxsize=64)(self._draw)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(self._online(t).copy())

    def _draw(self, t: int) -> NDArray[np.bool_]:
        """Draw who is online in round t, shape (N,), given the rounds that it is conditioned on."""
        u = self.rng("markov", t).random(self.num_clients, np.float32)
        if t == 1:
            return np.asarray(u < np.float32(self._online_fraction))
        step = t & -t  # the largest power of two that divides t
        if step == t:
            forward = self._transition(t // 2)[:, 1].astype(np.float32)
            return np.asarray(u < forward[self._online(t // 2).view(np.uint8)])
        pair = self._online(t - step).view(np.uint8) * np.uint8(2) + self._online(t + step)
        return np.asarray(u < self._bridge(step).astype(np.float32).ravel()[pair])

    def _transition(self, steps: int) -> NDArray[np.float64]:
        """Transition probabilities [from, to] between offline and online over some rounds, shape (2, 2)."""
        stationary = np.array([1 - self._online_fraction, self._online_fraction])
        memory: float = self._memory**steps
        return np.asarray(stationary + memory * (np.eye(2) - stationary))

    def _bridge(self, step: int) -> NDArray[np.float64]:
        """Probability of being online, given the states [before, after] `step` rounds away, shape (2, 2)."""
        P = self._transition(step)
        through = P[:, :, None] * P[None, :, :]  # [before, now, after]
        both = through.sum(axis=1)
        # Pairs of states that cannot occur (with spells of exactly one round) are never looked up.
        return np.asarray(np.divide(through[:, 1], both, out=np.zeros((2, 2)), where=both > 0))
