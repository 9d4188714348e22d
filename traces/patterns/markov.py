"""Clients that stay online, or offline, for several rounds in a row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Range
from traces.base import RoundAvailability, SeededTrace, complete_if_online

_BLOCK = 1 << 15  # clients whose chains are evaluated at a time: their arrays stay in the cache

Spell = Annotated[float, Range(least=1)]


@dataclass(frozen=True, kw_only=True)
class Markov(SeededTrace, name="markov"):
    """A two-state Markov chain per client, given by the mean lengths of its spells online and offline.

    An online client goes offline before the next round with probability 1 / on, and an offline one comes back
    with probability 1 / off, so that the lengths of spells are geometric. The first round is drawn from the
    stationary distribution: a fraction on / (on + off) is online. Online clients complete all their steps.

    Attributes
    ----------
    on, off
        Mean length of a spell in rounds.
    """

    on: Spell = 10.0
    off: Spell = 10.0

    @cached_property
    def _chains(self) -> "Chains":
        return Chains(self._draws, self.on / (self.on + self.off), 1 - 1 / self.on - 1 / self.off)

    def availability(self, t: int) -> RoundAvailability:
        return complete_if_online(self._chains.online(t))

    def _draws(self, t: int) -> NDArray[np.float32]:
        return self.rng("markov", t).random(self.num_clients, np.float32)


class Chains:
    """Stationary two-state Markov chains, one per client, whose rounds can be drawn in any order.

    The chains are not simulated from the first round on. Rounds 1, 2, 4, 8, ... are each drawn given the one
    before; any other round, t = h * odd with h a power of two, is drawn given rounds t - h and t + h. Thus a
    single round takes O(log t) draws, and consecutive rounds about one each.

    `draws` returns the clients' draws for round t, uniform on [0, 1), shape (N,). `share` is the probability
    of being online in the stationary distribution, and `memory` the correlation of successive rounds, the
    second eigenvalue: 1 less the probabilities of going offline and of coming back. Both are numbers, the
    same for all clients, or both are arrays of shape (N,).
    """

    def __init__(
        self,
        draws: Callable[[int], NDArray[np.float32]],
        share: float | NDArray[np.float32],
        memory: float | NDArray[np.float32],
    ) -> None:
        self._draws, self._share, self._memory = draws, share, memory
        self._online = lru_cache(maxsize=64)(self._draw)

    def online(self, t: int) -> NDArray[np.bool_]:
        """Return who is online in round t, shape (N,)."""
        return self._online(t).copy()

    def _draw(self, t: int) -> NDArray[np.bool_]:
        """Draw who is online in round t, given the rounds that it is conditioned on."""
        u = self._draws(t)
        if t == 1:
            return np.asarray(u < np.asarray(self._share, np.float32))
        step = t & -t  # the largest power of two that divides t
        if step == t:
            return np.asarray(u < self._probability(_follows, t // 2, self._online(t // 2)))
        before, after = self._online(t - step), self._online(t + step)
        return np.asarray(u < self._probability(_passes, step, before, after))

    def _probability(
        self, formula: Callable[..., Any], steps: int, *states: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Evaluate a formula of the states in rounds that are `steps` away, of share and memory."""
        share, memory = self._share, self._memory
        if not (isinstance(share, np.ndarray) and isinstance(memory, np.ndarray)):
            # The same for all clients: the few values are looked up.
            table = formula(*np.indices((2,) * len(states)), share, memory**steps)
            index = states[0].view(np.uint8)
            for state in states[1:]:
                index = index * np.uint8(2) + state
            return np.asarray(table.astype(np.float32).ravel()[index])
        result = np.empty(len(share), np.float32)
        for start in range(0, len(result), _BLOCK):
            at = slice(start, start + _BLOCK)
            known = (state[at].astype(np.float32) for state in states)
            result[at] = formula(*known, share[at], _power(memory[at], steps))
        return result


def _power(memory: NDArray[np.float32], steps: int) -> NDArray[np.float32]:
    """Raise to a power of two by squaring; NumPy's powers are slow where they underflow."""
    for _ in range(steps.bit_length() - 1):
        memory = memory * memory
    return memory


# In the following formulas, states are 1 (online) or 0, and all arguments are numbers or arrays alike.


def _moves(before: Any, after: Any, share: Any, memory: Any) -> Any:
    """Probability of moving from one state to another."""
    stationary = abs((1 - after) - share)
    return stationary + memory * (abs((1 - after) - before) - stationary)


def _follows(before: Any, share: Any, memory: Any) -> Any:
    """Probability of being online, given an earlier state."""
    return _moves(before, 1, share, memory)


def _passes(before: Any, after: Any, share: Any, memory: Any) -> Any:
    """Probability of being online, given an earlier and a later state."""
    online = _moves(before, 1, share, memory) * _moves(1, after, share, memory)
    both = _moves(before, 0, share, memory) * _moves(0, after, share, memory) + online
    # Pairs of states that cannot occur (with spells of exactly one round) are never looked up.
    return np.divide(online, both, out=np.zeros_like(both), where=both > 0)
