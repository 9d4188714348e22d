"""The states of clients in the rounds, and how many of them share a cell of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.int8]

ROWS, COLUMNS = 200, 400  # of a picture, at most
MOST_KEPT = 10_000_000  # states in memory: of more, those of an even sample of the clients are kept


class State(IntEnum):
    """The state of a client in a round, in order of how much work arrives."""

    ABSENT = 0  # not a member
    OFFLINE = 1
    NOT_SELECTED = 2  # online, but not asked
    DROPPED = 3  # asked, but nothing arrives: it drops out in mid-round
    LOST = 4  # it did its work, but the reply is lost
    LATE = 5  # its reply arrives in a later round
    REJECTED = 6  # its reply does not count, or it failed for another reason
    INCOMPLETE = 7
    COMPLETE = 8

    @property
    def shown(self) -> str:
        """Its name for readers."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Picture:
    """States in cells, clients by rounds.

    Attributes
    ----------
    states
        The most frequent state of each cell, shape (rows, columns).
    took_part
        Share of a cell's members whose replies counted, same shape; NaN in a cell without members.
    clients
        Of each row, the first client and the last; by availability, their ranks.
    rounds
        Of each column, the first round and the last.
    """

    states: NDArray[np.int8]
    took_part: NDArray[np.float64]
    clients: list[tuple[int, int]]
    rounds: list[tuple[int, int]]

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one client in one round."""
        return self.most_in_a_cell == 1

    @property
    def most_in_a_cell(self) -> int:
        """Clients x rounds of the largest cell."""
        return max(b - a + 1 for a, b in self.clients) * max(b - a + 1 for a, b in self.rounds)


class StateGrid:
    """Collects the states of all clients, round by round.

    Parameters
    ----------
    num_clients
        N.
    rounds
        The rounds that will be added.

    Attributes
    ----------
    step
        Every how many clients one is kept.
    """

    def __init__(self, num_clients: int, rounds: Sequence[int]) -> None:
        self.num_clients, self.rounds = num_clients, list(rounds)
        self.step = max(1, -(-num_clients * len(self.rounds) // MOST_KEPT))
        self.states = np.zeros((-(-num_clients // self.step), len(self.rounds)), np.int8)
        self._column = {t: column for column, t in enumerate(self.rounds)}

    def add(self, t: int, states: States) -> None:
        """Take in the states of a round, shape (N,)."""
        self.states[:, self._column[t]] = states[:: self.step]

    def occurring(self) -> list[State]:
        """Return the states that occur."""
        return [State(code) for code in np.unique(self.states).tolist()]

    def by_availability(self) -> NDArray[np.intp]:
        """Return the kept clients, those first that were online in the largest share of their rounds."""
        member = np.maximum((self.states > State.ABSENT).sum(axis=1), 1)
        online = (self.states > State.OFFLINE).sum(axis=1) / member
        return np.argsort(-online, kind="stable")

    def picture(self, order: NDArray[np.intp] | None = None) -> Picture:
        """Return the states of the kept clients, in their order or in another one."""
        states = self.states if order is None else self.states[order]
        rows, columns = _starts(len(states), ROWS), _starts(len(self.rounds), COLUMNS)
        counts = np.stack(
            [
                np.add.reduceat(np.add.reduceat(states == state, rows, 0, np.int64), columns, 1)
                for state in State
            ],
            axis=-1,
        )
        members = counts[..., State.OFFLINE :].sum(axis=-1)
        counted = counts[..., State.INCOMPLETE :].sum(axis=-1)
        share = np.divide(counted, members, out=np.full(members.shape, np.nan), where=members > 0)
        last = self.num_clients - 1
        clients = [(a * self.step, min(b * self.step - 1, last)) for a, b in _bounds(rows, len(states))]
        rounds = [(self.rounds[a], self.rounds[b - 1]) for a, b in _bounds(columns, len(self.rounds))]
        return Picture(counts.argmax(axis=-1).astype(np.int8), share, clients, rounds)


def _starts(count: int, most: int) -> NDArray[np.intp]:
    """Return where the parts start that `count` things are divided into, at most `most`."""
    parts = min(count, most)
    return np.arange(parts, dtype=np.intp) * count // max(parts, 1)


def _bounds(starts: NDArray[np.intp], count: int) -> list[tuple[int, int]]:
    return [*zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True)]
