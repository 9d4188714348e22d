"""Who belongs to the federation, with how much data, since when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import StateDict, Stateful

Clients = NDArray[np.intp]
ClientWeights = Literal["n", "uniform"]
"""How clients count: by their examples n_k, or all alike."""


def are_among(clients: Clients, ascending: Clients) -> NDArray[np.bool_]:
    """Whether each client is one of others, in ascending order; `np.isin` takes ten times as long for few."""
    first, last = (ascending.searchsorted(clients, side) for side in ("left", "right"))
    return np.not_equal(first, last)


class Forecast(Protocol):
    """What a trace with a clock knows of round t, the present one, in virtual seconds."""

    def elapsed(self, t: int) -> float:
        """Return how long it took, when it is over."""

    def leave(self, t: int, clients: Clients) -> NDArray[np.float64]:
        """Return how long clients that are online stay from its beginning on, shape (K,); inf: for ever."""


class Totals(NamedTuple):
    """What follows from all clients."""

    members: int
    contributors: int  # members with data
    size: float  # sum of their n_k
    unknown_size: float  # by which members of unknown size count in it


class Roster(Stateful):
    """The members and their shares of the objective F = sum_k p_k F_k.

    Clients are dense indices: a million of them are a few arrays. The names by which Flower knows them are
    mapped to indices at first sight; those registered at the start are named "0", "1", ...

    Parameters
    ----------
    num_examples
        n_k of the clients known at the start, shape (N,).
    members
        Which of them belong to the objective from the first round on; default: all.
    participation
        For a round, each client's probability of taking part, shape (N,), or None where that is not known.
    forecast
        How long clients stay and rounds take; None: that is not known.

    Attributes
    ----------
    num_examples, first_size
        n_k as it is known now and as it was known first, 0 while unknown, shape (N,).
    data_less
        Clients without data: registered without any at the start, or by their own word. Mask of shape (N,).
    member
        Clients that the objective consists of; a departed one whose objective is kept is one of them.
    departed, departed_for_good
        Clients that have left, and those that do not return: by their own word, or let go by the method.
    joined
        tau_0 of a client's arrival: the last round without it; 0 for members from the start. Shape (N,).
    asked, accepted
        Last round in which each client was asked, or its reply counted, 0 for never, shape (N,).
    shift
        tau_0 of the objective: the last round of the previous one, 0 if it never changed.
    """

    _BY_CLIENT = (
        *("num_examples", "first_size", "data_less", "member", "departed", "departed_for_good"),
        *("joined", "asked", "accepted"),
    )
    saved = (*_BY_CLIENT, "shift", "_registered", "_index")

    def __init__(
        self,
        num_examples: NDArray[np.integer[Any]] | None = None,
        members: NDArray[np.bool_] | None = None,
        participation: Callable[[int], NDArray[np.float64] | None] = lambda server_round: None,
        forecast: Forecast | None = None,
    ) -> None:
        self.participation, self.forecast = participation, forecast
        sizes = np.asarray(num_examples if num_examples is not None else [], dtype=np.int64)
        if (sizes < 0).any():
            raise ValueError(f"client {int(np.argmax(sizes < 0))} has a negative number of examples")
        self.num_examples, self.first_size = sizes.copy(), sizes.copy()
        self.data_less: NDArray[np.bool_] = sizes == 0
        self.member = np.ones(len(sizes), bool) if members is None else np.array(members, bool)
        if self.member.shape != sizes.shape:
            raise ValueError(f"{len(self.member)} membership flags for {len(sizes)} clients")
        self.departed, self.departed_for_good = np.zeros((2, len(sizes)), bool)
        # Rounds, of which there are a billion at most.
        self.joined, self.asked, self.accepted = (np.zeros(len(sizes), np.int32) for _ in range(3))
        self.shift = 0
        self._registered = len(sizes)
        self._known: Totals | None = None
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.member)

    @property
    def num_members(self) -> int:
        """Number of clients in the objective."""
        return self._totals.members

    @property
    def contributors(self) -> NDArray[np.bool_]:
        """Members that have data, or of which it is not known yet, shape (N,)."""
        return self.member & ~self.data_less

    @property
    def num_contributors(self) -> int:
        """N of the methods that divide by it or multiply with it."""
        return self._totals.contributors

    @property
    def total_size(self) -> float:
        """n, the sum of all members' n_k."""
        return self._totals.size

    def total(self, weights: ClientWeights) -> float:
        """n with `n`, N with `uniform`."""
        return float(self.num_contributors) if weights == "uniform" else self.total_size

    @property
    def shares(self) -> NDArray[np.float64]:
        """p_k of all clients, shape (N,)."""
        return self.share(np.arange(len(self)))

    def share(self, clients: Clients, weights: ClientWeights = "n") -> NDArray[np.float64]:
        """p_k = n_k / n, or 1 / N with `uniform`, over all members (not over those who reply). Shape (K,).

        A member of unknown size counts as if it had the mean of the known sizes; 0 for clients that are not
        members.
        """
        if weights == "uniform":
            return np.full(len(clients), 1 / max(1, self.num_contributors))
        reported, total = self.num_examples[clients], self.total_size
        known = np.where(reported == 0, self._totals.unknown_size, reported)
        sizes = np.where(self.member[clients] & ~self.data_less[clients], known, 0.0)
        return sizes / total if total else sizes

    def relative_share(self, clients: Clients, weights: ClientWeights = "n") -> NDArray[np.float64]:
        """N p_k, 1 for a client with as much data as the others have on average. Shape (K,)."""
        return self.num_contributors * self.share(clients) if weights == "n" else np.ones(len(clients))

    @property
    def _totals(self) -> Totals:
        """Computed anew only when one of the clients has changed."""
        if self._known is None:
            contributors = self.contributors
            sizes = np.where(contributors, self.num_examples, 0).astype(np.float64)
            known = sizes[sizes > 0]
            unknown = int(contributors.sum()) - len(known)
            unknown_size = float(known.mean()) if len(known) else 1.0
            total = float(sizes.sum()) + unknown * unknown_size
            self._known = Totals(int(self.member.sum()), len(known) + unknown, total, unknown_size)
        return self._known

    def find(self, name: str) -> int | None:
        """Index of the client that Flower calls `name`; None if it is unknown."""
        if name in self._index:
            return self._index[name]
        known = name.isdecimal() and len(name) <= 18 and int(name) < self._registered
        return int(name) if known and str(int(name)) == name else None

    def register(self, name: str) -> int:
        """Index of the client that Flower calls `name`; a new one is not a member, and of unknown size."""
        known = self.find(name)
        if known is not None:
            return known
        self._index[name] = client = len(self)
        for field in self._BY_CLIENT:
            array = getattr(self, field)
            setattr(self, field, np.append(array, np.zeros(1, array.dtype)))
        self._known = None
        return client

    def rename(self, client: int, name: str) -> None:
        """Call a client by another name, which is nobody else's, from now on."""
        self._index = {known: index for known, index in self._index.items() if index != client} | {
            name: client
        }

    def note_sizes(self, clients: Clients, num_examples: NDArray[np.int64]) -> None:
        """Note the sizes that the active replies of a round report."""
        if not np.array_equal(self.num_examples[clients], num_examples):
            self.num_examples[clients], self._known = num_examples, None
        first = self.first_size[clients]
        self.first_size[clients] = np.where(first == 0, num_examples, first)

    def note_data(self, clients: Clients, some: bool) -> None:
        """Note whether clients have data."""
        if len(clients):
            self.data_less[clients], self._known = not some, None

    def arrive(self, client: int, server_round: int) -> None:
        """Make a client a member from `server_round` on (an objective shift, Ruan et al. 3.3).

        The return of a client whose objective was kept meanwhile shifts nothing.
        """
        if not self.member[client]:
            self.joined[client] = server_round - 1
            self._shift(client, server_round)
        self.member[client], self._known = True, None
        self.departed[client] = self.departed_for_good[client] = False

    def depart(self, client: int, server_round: int, keep: bool) -> None:
        """Let a client go before `server_round`; unless its objective is kept, the objective shifts."""
        self.departed[client] = True
        if not keep:
            self.member[client], self._known = False, None
            self._shift(client, server_round)

    def _shift(self, client: int, server_round: int) -> None:
        """Begin a new objective with `server_round`; a client without data is part of none."""
        if not self.data_less[client]:
            self.shift = server_round - 1

    def forget(self, client: int) -> None:
        """Forget what a client did: should it arrive again, it is new."""
        self.asked[client] = self.accepted[client] = self.first_size[client] = 0

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._known = None
