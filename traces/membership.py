"""Clients that arrive late or depart early."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from traces.base import RoundAvailability, Trace, check_round, complete_if_online

_NEVER = np.iinfo(np.int64).max


When = int | float
"""When a client arrives or departs: an int is a round, a float a moment in virtual seconds."""


class Membership(Trace):
    """Clients that join and leave the federation; while they are members, they are online and complete.

    To be combined with another trace, see `Combined`. `arrivals` maps clients to the first round in which
    they are members, by default round 1; `departures` to the first in which they no longer are. A float is a
    moment in event time instead, in seconds: the first round is then the first that begins at this moment or
    later (see `traces.timeline`). ValueError: a client does not exist, a round is below 1, a moment below 0,
    or a client departs before or when it arrives.
    """

    def __init__(
        self, num_clients: int, arrivals: Mapping[int, When], departures: Mapping[int, When]
    ) -> None:
        self.num_clients, self._changes = num_clients, bool(arrivals or departures)
        # Who has a moment has no round that matters, and the other way round.
        self._arrival, self._from = self._columns("arrivals", arrivals, 1, -np.inf)
        self._departure, self._until = self._columns("departures", departures, _NEVER, np.inf)
        self._check_order("in round {}", self._arrival, self._departure)
        self._check_order("at {:g} s", np.maximum(self._from, 0), self._until)

    def _columns(
        self, kind: str, given: Mapping[int, When], no_round: int, no_moment: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return each client's round and each client's moment, shape (N,); the default where it has none."""
        rounds = np.full(self.num_clients, no_round, np.int64)
        moments = np.full(self.num_clients, no_moment)
        for client, when in given.items():
            if not 0 <= client < self.num_clients:
                last = self.num_clients - 1
                raise SettingsError(f"{kind}: client {client} does not exist, give clients from 0 to {last}")
            if isinstance(when, float):
                if not 0 <= when < np.inf:
                    raise SettingsError(f"{kind}: client {client} has moment {when:g} s, give 0 or more")
                moments[client] = when
            elif when < 1:
                raise SettingsError(f"{kind}: client {client} has round {when}, give 1 or more")
            else:
                rounds[client] = when
        return rounds, moments

    def _check_order(self, at: str, arrival: NDArray[Any], departure: NDArray[Any]) -> None:
        """Raise ValueError for a client that departs before it arrives; `at` words a time."""
        for client in np.flatnonzero(departure <= arrival):
            raise SettingsError(
                f"departures: client {client} departs {at.format(departure[client])} but arrives "
                f"{at.format(arrival[client])}, let it depart after it arrives"
            )

    @property
    def by_second(self) -> bool:
        """Whether a client arrives or departs at a moment, which only event time has."""
        return bool(np.isfinite(self._from).any() or np.isfinite(self._until).any())

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`); ValueError: a client has a moment."""
        check_round(t)
        if self.by_second:
            raise SettingsError(
                "arrivals, departures: moments in seconds need event time, set round-ends; or give rounds"
            )
        member = (self._arrival <= t) & (t < self._departure)
        return complete_if_online(member.copy())._replace(member=member)

    def window(self, t: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return between which moments round t has to begin for clients to be members in it, shape (N,) each.

        Who arrives or departs by round has done so long ago, or not yet: -inf or inf.
        """
        if not self._changes:
            return self._from, self._until
        begin = np.where(self._arrival <= t, self._from, np.inf)
        return begin, np.where(self._departure <= t, -np.inf, self._until)

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1: other traces say how often members take part (see `Trace.participation`)."""
        return np.ones(self.num_clients)


# Nine digits hold any client, round or second in use. The limit on the number of clients keeps a typo in a
# range from filling the memory.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?=([0-9]{1,9})(?:((?:\.[0-9]{1,6})?)s)?")
_MAX_CLIENTS = 1_000_000


def parse_rounds(text: str) -> dict[int, When]:
    """Parse the arrivals or departures of a command line, such as ``"10=5,20-24=30"`` or ``"10=3600s"``.

    Parts are ``client=round`` or ``first-last=round``, both ends included, with commas between them and
    spaces around them; an ``s`` makes the round a moment in virtual seconds, a float, which may have six
    decimals. An empty text is an empty mapping. `Membership` checks the values. ValueError is
    raised if a part cannot be parsed, a range runs backwards, or a client occurs twice; the message gives the
    number of the part, counted from 1.
    """
    rounds: dict[int, When] = {}
    for number, raw in enumerate(text.split(",") if text.strip() else [], start=1):
        part = raw.strip()
        shown = part if len(part) <= 40 else part[:37] + "..."
        where = f"part {number} ({shown!r}) of the client=round list"
        match = _PART.fullmatch(part)
        if match is None:
            raise SettingsError(f"{where} cannot be read, write it like 10=5, 10-14=5 or 10=3600s")
        first, when = int(match[1]), int(match[3]) if match[4] is None else float(match[3] + match[4])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise SettingsError(f"{where} runs backwards, write the smaller number first")
        if len(rounds) + last - first + 1 > _MAX_CLIENTS:
            raise SettingsError(f"{where} brings the list to more than {_MAX_CLIENTS} clients, name fewer")
        for client in range(first, last + 1):
            if client in rounds:
                raise SettingsError(f"{where} names client {client} a second time, name each client once")
            rounds[client] = when
    return rounds
