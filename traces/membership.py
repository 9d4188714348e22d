"""Clients that arrive late or depart early."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.base import (
    NEVER,
    SECOND,
    Moments,
    RoundAvailability,
    Trace,
    check_round,
    complete_if_online,
    microseconds,
)

When = int | float
"""When a client arrives or departs: an int is a round, `NEVER` too, a float a moment in virtual seconds."""


@dataclass(frozen=True)
class Membership(Trace, name="membership"):
    """Clients that join and leave the federation; while they are members, they are online and complete.

    To be combined with another trace, see `Combined`. `arrivals` maps clients to the first round in which
    they are members, by default round 1; `departures` to the first in which they no longer are. A float is a
    moment in event time instead, in seconds: the first round is then the first that begins at this moment or
    later (see `traces.compose.timeline`). ValueError: a client does not exist, a round is below 1, a moment
    below 0, or a client departs before or when it arrives.
    """

    role = "members"
    num_clients: int
    arrivals: Mapping[int, When] = field(hash=False)
    departures: Mapping[int, When] = field(hash=False)

    def __post_init__(self) -> None:
        for name, given in (("arrivals", self.arrivals), ("departures", self.departures)):
            for client, when in given.items():
                self._check(name, client, when)
        (arrival, since), (departure, until) = self._arrivals, self._departures
        for client in np.flatnonzero((departure <= arrival) & (departure < NEVER)).tolist():
            arrives = "never" if arrival[client] == NEVER else f"in round {arrival[client]}"
            self._refuse(client, f"in round {departure[client]}", arrives)
        since = np.maximum(since, 0)
        for client in np.flatnonzero(until <= since).tolist():
            self._refuse(client, f"at {until[client] / SECOND:g} s", f"at {since[client] / SECOND:g} s")

    def _check(self, name: str, client: int, when: When) -> None:
        if not 0 <= client < self.num_clients:
            last = self.num_clients - 1
            raise SettingsError(f"{name}: client {client} does not exist, give clients from 0 to {last}")
        if isinstance(when, float) and not 0 <= when < np.inf:
            raise SettingsError(f"{name}: client {client} has moment {when:g} s, give 0 or more")
        if not isinstance(when, float) and when < 1:
            raise SettingsError(f"{name}: client {client} has round {when}, give 1 or more")

    @staticmethod
    def _refuse(client: int, departs: str, arrives: str) -> NoReturn:
        raise SettingsError(
            f"departures: client {client} departs {departs} but arrives {arrives}, let it depart after it "
            "arrives"
        )

    # Who has a moment has no round that matters, and the other way round.

    @cached_property
    def _arrivals(self) -> tuple[NDArray[np.int64], Moments]:
        return self._columns(self.arrivals, 1, -NEVER)

    @cached_property
    def _departures(self) -> tuple[NDArray[np.int64], Moments]:
        return self._columns(self.departures, NEVER, NEVER)

    def _columns(
        self, given: Mapping[int, When], no_round: int, no_moment: int
    ) -> tuple[NDArray[np.int64], Moments]:
        """Return each client's round and each client's moment, shape (N,); the default where it has none."""
        rounds, moments = np.full(self.num_clients, no_round), np.full(self.num_clients, no_moment)
        for client, when in given.items():
            if isinstance(when, float):
                moments[client] = microseconds(when)
            else:
                rounds[client] = when
        return rounds, moments

    @property
    def by_second(self) -> bool:
        """Whether a client arrives or departs at a moment, which only event time has."""
        return any(isinstance(when, float) for when in (*self.arrivals.values(), *self.departures.values()))

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`); ValueError: a client has a moment."""
        check_round(t)
        if self.by_second:
            raise SettingsError(
                "arrivals, departures: moments in seconds need event time, set round-ends; or give rounds"
            )
        member = (self._arrivals[0] <= t) & (t < self._departures[0])
        return complete_if_online(member.copy())._replace(member=member)

    def window(self, t: int) -> tuple[Moments, Moments]:
        """Return between which moments round t has to begin for clients to be members in it, shape (N,) each.

        From the first on, and before the second. Who arrives or departs by round has done so long ago, or not
        yet: -`NEVER` or `NEVER`.
        """
        (arrival, since), (departure, until) = self._arrivals, self._departures
        if not self.arrivals and not self.departures:
            return since, until
        return np.where(arrival <= t, since, NEVER), np.where(departure <= t, -NEVER, until)

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1: other traces say how often members take part (see `Trace.participation`)."""
        return np.ones(self.num_clients)


# Nine digits hold any client, round or second in use. The limit on the number of clients keeps a typo in a
# range from filling the memory.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?=(?:(never)|([0-9]{1,9})(?:((?:\.[0-9]{1,6})?)s)?)")
_MAX_CLIENTS = 1_000_000


def parse_rounds(text: str) -> dict[int, When]:
    """Parse the arrivals or departures of a command line, such as ``"10=5,20-24=30"`` or ``"10=3600s"``.

    Parts are ``client=round`` or ``first-last=round``, both ends included, with commas between them and
    spaces around them; an ``s`` makes the round a moment in virtual seconds, a float, which may have six
    decimals, and ``never`` stands for `NEVER`. An empty text is an empty mapping. `Membership` checks the
    values. ValueError is raised if a part cannot be parsed, a range runs backwards, or a client occurs twice;
    the message gives the number of the part, counted from 1.
    """
    rounds: dict[int, When] = {}
    for number, raw in enumerate(text.split(",") if text.strip() else [], start=1):
        part = raw.strip()
        shown = part if len(part) <= 40 else part[:37] + "..."
        where = f"part {number} ({shown!r}) of the client=round list"
        match = _PART.fullmatch(part)
        if match is None:
            raise SettingsError(f"{where} cannot be read, write it like 10=5, 10-14=5 or 10=3600s")
        first = int(match[1])
        when = NEVER if match[3] else int(match[4]) if match[5] is None else float(match[4] + match[5])
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


def written_rounds(rounds: Mapping[int, When]) -> str:
    """Return the text that `parse_rounds` parses so."""

    def shown(when: When) -> str:
        return "never" if when == NEVER else f"{when:.6f}s" if isinstance(when, float) else str(when)

    return ",".join(f"{client}={shown(when)}" for client, when in rounds.items())
