"""Clients that are online while their users sleep."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, Range
from fedtide.base.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace, complete_if_online
from traces.files.lines import client_index
from traces.files.tables import read_numbers

_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Sleep(SeededTrace, name="sleep"):
    """Each client is online for eight hours per day, those in which its user posts least.

    Yan et al., "FedLaAvg", 6.1.3, for Sentiment140. The posts come from a file of `client,seconds`, of which
    only the time of day is used. As in the authors' code, the eight hours start at one of the client's posts,
    which itself is not counted; among equally quiet times the first of the day is chosen. Without a file,
    every client's hours start at a time drawn uniformly from the day. Round 1 starts at midnight.

    Attributes
    ----------
    period
        Rounds per day (the paper's E, 120).
    hours
        Hours online per day.
    file
        Posts of each client as CSV or JSON lines (see `traces.files.tables`): `client` is 0..N-1, `seconds`
        counts from any midnight.
    """

    period: Count = 120
    hours: Annotated[float, Range(above=0, most=24)] = 8.0
    file: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.begin  # reads the file

    @property
    def repeats_after(self) -> float:
        return self.period

    @cached_property
    def begin(self) -> NDArray[np.float64]:
        """Seconds after midnight at which each client comes online, shape (N,)."""
        if self.file:
            posts = _read_posts(self.file, self.num_clients)
            return np.array([quietest(own, self.hours * 3600) for own in posts])
        return self.rng("sleep", 0).random(self.num_clients) * _DAY

    def availability(self, t: int) -> RoundAvailability:
        now = (t - 1) % self.period * _DAY / self.period
        end = self.begin + self.hours * 3600
        today = (self.begin <= now) & (now < end)
        return complete_if_online(today | (now + _DAY < end))


def quietest(posts: NDArray[np.float64], length: float) -> float:
    """Return the post that is followed by the fewest others within `length` seconds, at most a day.

    Posts are seconds after midnight, shape (n,), at least one.
    """
    posts = np.sort(posts)
    two_days = np.concatenate([posts, posts + _DAY])
    inside = np.searchsorted(two_days, posts + length, "left") - np.searchsorted(two_days, posts, "right")
    return float(posts[np.argmin(inside)])


def _read_posts(path: str, num_clients: int) -> list[NDArray[np.float64]]:
    """Read the times of each client's posts, in seconds after midnight."""
    posts: list[list[float]] = [[] for _ in range(num_clients)]
    for line, (client, seconds) in read_numbers("trace sleep", path, ("client", "seconds")):
        place = f"trace sleep: {path}, line {line}"
        posts[client_index(place, client, num_clients)].append(seconds % _DAY)
    silent = next((k for k, times in enumerate(posts) if not times), None)
    if silent is not None:
        raise SettingsError(
            f"trace sleep: {path}: client {silent} has no posts, give at least one for every client"
        )
    return [np.array(times) for times in posts]
