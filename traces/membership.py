"""Clients that arrive late or depart early."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, Trace, check_round, complete_if_online

_NEVER = np.iinfo(np.int64).max


class Membership(Trace):
    """Clients that join and leave the federation; while they are members, they are online and complete.

    To be combined with another trace, see `Combined`. `arrivals` maps clients to the first round in which
    they are members, by default round 1; `departures` to the first in which they no longer are. ValueError:
    a client does not exist, a round is below 1, or a client departs before or when it arrives.
    """

    def __init__(self, num_clients: int, arrivals: Mapping[int, int], departures: Mapping[int, int]) -> None:
        self.num_clients = num_clients
        self._arrival = self._rounds("arrivals", arrivals, 1)
        self._departure = self._rounds("departures", departures, _NEVER)
        for client in np.flatnonzero(self._departure <= self._arrival):
            raise ValueError(
                f"departures: client {client} departs in round {self._departure[client]} but arrives in "
                f"round {self._arrival[client]}, let it depart after it arrives"
            )

    def _rounds(self, kind: str, given: Mapping[int, int], default: int) -> NDArray[np.int64]:
        """Return each client's round, shape (N,)."""
        rounds = np.full(self.num_clients, default, np.int64)
        for client, t in given.items():
            if not 0 <= client < self.num_clients:
                last = self.num_clients - 1
                raise ValueError(f"{kind}: client {client} does not exist, give clients from 0 to {last}")
            if t < 1:
                raise ValueError(f"{kind}: client {client} has round {t}, give 1 or more")
            rounds[client] = t
        return rounds

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        member = (self._arrival <= t) & (t < self._departure)
        return complete_if_online(member.copy())._replace(member=member)

    def participation(self, t: int) -> NDArray[np.float64]:
        """Return 1: other traces say how often members take part (see `Trace.participation`)."""
        return np.ones(self.num_clients)


# Nine digits hold any client or round in use. The limit on the number of clients keeps a typo in a range
# from filling the memory.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?=([0-9]{1,9})")
_MAX_CLIENTS = 1_000_000


def parse_rounds(text: str) -> dict[int, int]:
    """Parse the arrivals or departures of a command line, such as ``"10=5,20-24=30"``.

    Parts are ``client=round`` or ``first-last=round``, both ends included, with commas between them and
    spaces around them; an empty text is an empty mapping. `Membership` checks the values. ValueError is
    raised if a part cannot be parsed, a range runs backwards, or a client occurs twice; the message gives the
    number of the part, counted from 1.
    """
    rounds: dict[int, int] = {}
    for number, raw in enumerate(text.split(",") if text.strip() else [], start=1):
        part = raw.strip()
        shown = part if len(part) <= 40 else part[:37] + "..."
        where = f"part {number} ({shown!r}) of the client=round list"
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{where} cannot be read, write it like 10=5 or 10-14=5")
        first, t = int(match[1]), int(match[3])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"{where} runs backwards, write the smaller number first")
        if len(rounds) + last - first + 1 > _MAX_CLIENTS:
            raise ValueError(f"{where} brings the list to more than {_MAX_CLIENTS} clients, name fewer")
        for client in range(first, last + 1):
            if client in rounds:
                raise ValueError(f"{where} names client {client} a second time, name each client once")
            rounds[client] = t
    return rounds
