"""Clients that are online while their users sleep."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.files.lines import client_index, read_lines
from traces.seeded import Count, SeededTrace, check_at_least

_DAY = 86400.0

Hours = Annotated[float, "above 0 and at most 24"]


class Sleep(SeededTrace):
    """Each client is online for eight hours per day, those in which its user posts least.

    Yan et al., "FedLaAvg", 6.1.3, for Sentiment140. The posts come from a file of `client,seconds`, of which
    only the time of day is used. As in the authors' code, the eight hours start at one of the client's posts,
    which itself is not counted; among equally quiet times the first of the day is chosen. Without a file,
    every client's hours start at a time drawn uniformly from the day. Round 1 starts at midnight.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    period : int
        Rounds per day (the paper's E, 120).
    hours : float
        Hours online per day, above 0 and at most 24.
    file : str
        Posts as CSV or JSON lines (see `traces.files.lines`): `client` is 0..N-1, `seconds` counts from any
        midnight.

    Attributes
    ----------
    begin : (N,) float64
        Seconds after midnight at which each client comes online.

    Raises
    ------
    ValueError
        If an option is out of range, the file cannot be read, or a client has no posts.
    """

    def __init__(
        self, num_clients: int, seed: int, *, period: Count = 120, hours: Hours = 8.0, file: str = ""
    ) -> None:
        super().__init__(num_clients, seed)
        check_at_least("sleep", "period", period, 1)
        if not 0 < hours <= 24:
            raise ValueError(f"trace sleep: hours is {hours}, give a number above 0 and at most 24")
        self.period, self._length = period, hours * 3600
        self.begin: NDArray[np.float64] = self.rng("sleep", 0).random(num_clients) * _DAY
        if file:
            for client, posts in enumerate(_read_posts(file, num_clients)):
                self.begin[client] = quietest(posts, self._length)

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        now = (t - 1) % self.period * _DAY / self.period
        today = (self.begin <= now) & (now < self.begin + self._length)
        return complete_if_online(today | (now + _DAY < self.begin + self._length))


def quietest(posts: NDArray[np.float64], length: float) -> float:
    """Return the post that is followed by the fewest other posts within `length` seconds.

    Parameters
    ----------
    posts : (n,) float64
        Times of the posts in seconds after midnight; at least one.
    length : float
        Seconds, at most a day.
    """
    posts = np.sort(posts)
    two_days = np.concatenate([posts, posts + _DAY])
    inside = np.searchsorted(two_days, posts + length, "left") - np.searchsorted(two_days, posts, "right")
    return float(posts[np.argmin(inside)])


def _read_posts(path: str, num_clients: int) -> list[NDArray[np.float64]]:
    """Read the times of each client's posts, in seconds after midnight."""
    posts: list[list[float]] = [[] for _ in range(num_clients)]
    for line, (client, seconds) in read_lines("trace sleep", path, ("client", "seconds"), ()):
        place = f"trace sleep: {path}, line {line}"
        posts[client_index(place, client or 0.0, num_clients)].append((seconds or 0.0) % _DAY)
    silent = next((k for k, times in enumerate(posts) if not times), None)
    if silent is not None:
        raise ValueError(
            f"trace sleep: {path}: client {silent} has no posts, give at least one for every client"
        )
    return [np.array(times) for times in posts]
