"""Selection: which of the available clients are asked in a round, whatever becomes of their replies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedtide.base.errors import ResultError
from strategies.core.replies import Replies
from strategies.core.roster import Clients, Roster, are_among
from strategies.core.round import ClientFailure, RoundReport
from strategies.core.state import Stateful


class Selection(Stateful, ABC):
    """Chooses the clients of each round; a subclass has its options as keyword-only parameters.

    Parameters
    ----------
    roster
        The clients: their sizes, when each of them was last asked, and where there is one, a forecast.
    seed
        Of the draws.
    """

    def __init__(self, roster: Roster, seed: int) -> None:
        self.roster, self.seed = roster, seed

    def select(self, available: Clients, count: int, server_round: int) -> Clients:
        """Return the clients to ask, `count` of those available at most, in ascending order."""
        eligible = self.eligible(available, server_round)
        if len(eligible) <= count or not count:
            return eligible[:count]
        rng = np.random.default_rng([self.seed, *b"select", server_round])
        chosen = checked_choice(self.choose, self.choose(eligible, count, server_round, rng), eligible)
        if len(chosen) > count:
            raise ResultError(self.choose, f"chooses {len(chosen)} clients of at most {count}")
        return np.sort(chosen)

    def eligible(self, available: Clients, server_round: int) -> Clients:
        """Return those of the available clients that may be asked. Default: those with data."""
        return available[~self.roster.data_less[available]]

    @abstractmethod
    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        """Return `count` of the eligible clients, of which there are more, in any order."""

    def note(self, server_round: int, replies: Replies, failed: Mapping[int, float]) -> None:
        """Take note of how a round went.

        `replies` are those that count. `failed` has the clients whose replies do not, or will not come, and
        after how many seconds that was known; NaN: not measured.
        """

    def forget(self, client: int) -> None:
        """Forget what was noted of a client, which has left the objective."""


SelectionFactory = Callable[[Roster, int], Selection | None]
"""Makes a selection, given the clients and a seed; None: the method's own."""


def of_method(roster: Roster, seed: int) -> None:
    """As the method says: FedLaAvg and F3AST have their own selection, the others draw uniformly."""


def checked_choice(choose: Callable[..., Any], chosen: Any, among: Clients) -> Clients:
    """Return what `choose` has chosen as an array; ResultError: not different ones `among` these."""
    try:
        clients = np.asarray(chosen if isinstance(chosen, np.ndarray) else [*chosen])
    except (TypeError, ValueError):
        clients = np.empty((0, 0))
    if clients.ndim != 1 or (clients.size and clients.dtype.kind not in "iu"):
        raise ResultError(choose, "returns something else than indices of clients")
    clients = clients.astype(np.intp, copy=False)
    ordered = np.sort(clients)
    repeated, unasked = ordered[1:] == ordered[:-1], ~are_among(ordered, among)
    if repeated.any() or unasked.any():
        wrong = [*ordered[1:][repeated], *ordered[unasked]][0]
        raise ResultError(choose, f"chooses client {wrong} more than once, or while it cannot be asked")
    return clients


def failed(failures: Sequence[Any], report: RoundReport, roster: Roster) -> dict[int, float]:
    """Return the members whose replies do not count or did not come, see `Selection.note`."""
    seconds = dict.fromkeys((name for name, _ in report.rejected), math.nan)
    seconds |= {f.client: f.seconds for f in failures if isinstance(f, ClientFailure)}
    found = ((roster.find(name), taken) for name, taken in seconds.items())
    return {client: taken for client, taken in found if client is not None and roster.member[client]}


class Uniform(Selection):
    """Uniformly, without replacement; also clients without data, who then say so if they have got some."""

    def eligible(self, available: Clients, server_round: int) -> Clients:
        return available

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        return np.asarray(rng.choice(eligible, count, replace=False))


class LongestAbsent(Selection):
    """Those who were asked the longest ago, of equal ones those with the lower index (Yan et al. 2020)."""

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        """Return those with the lowest A_i, the last round in which client i was asked."""
        return eligible[np.argsort(self.roster.asked[eligible], kind="stable")[:count]]
