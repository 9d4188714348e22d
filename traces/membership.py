"""Clients that arrive late or depart early, on top of any trace."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, Trace, check_round

_NEVER = np.iinfo(np.int64).max


class Membership(Trace):
    """A trace in which clients join and leave the federation.

    A client that is not a member in a round is not online in it and completes nothing.

    Parameters
    ----------
    trace : Trace
        The availability of the clients while they are members.
    arrivals : mapping of int to int
        Client -> first round in which it is a member. Clients that are not listed are members from round 1.
    departures : mapping of int to int
        Client -> first round in which it is no longer a member. Clients that are not listed stay.

    Raises
    ------
    ValueError
        If a client does not exist, a round is below 1, or a client departs before or when it arrives.
    """

    def __init__(self, trace: Trace, arrivals: Mapping[int, int], departures: Mapping[int, int]) -> None:
        self.num_clients = trace.num_clients
        self.has_late_replies = trace.has_late_replies
        self.devices = trace.devices
        self._trace = trace
        self._arrival = np.ones(self.num_clients, np.int64)
        self._departure = np.full(self.num_clients, _NEVER)
        for kind, rounds, per_client in (
            ("arrivals", arrivals, self._arrival),
            ("departures", departures, self._departure),
        ):
            for client, t in rounds.items():
                if not 0 <= client < self.num_clients:
                    last = self.num_clients - 1
                    raise ValueError(f"{kind}: client {client} does not exist, give clients from 0 to {last}")
                if t < 1:
                    raise ValueError(f"{kind}: client {client} has round {t}, give 1 or more")
                per_client[client] = min(t, _NEVER)  # a round beyond int64 never comes
        for client, t in departures.items():
            arrival = arrivals.get(client, 1)
            if t <= arrival:
                raise ValueError(
                    f"departures: client {client} departs in round {t} but arrives in round {arrival}, "
                    "let it depart after it arrives"
                )

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        availability = self._trace.round(t)
        member = availability.member & (self._arrival <= t) & (t < self._departure)
        return RoundAvailability(member, availability.online & member, availability.completion * member)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which replies are lost (see `Trace.lost`)."""
        return self._trace.lost(t)

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies are late (see `Trace.late`)."""
        return self._trace.late(t)

    def participation(self, t: int) -> NDArray[np.float64] | None:
        """Return the probabilities of taking part while they are members (see `Trace.participation`)."""
        return self._trace.participation(t)

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds at the end of round t (see `Trace.seconds`)."""
        return self._trace.seconds(t)


# Nine digits hold any client or round in use. The limit on the number of clients keeps a typo in a range
# from filling the memory.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?=([0-9]{1,9})")
_MAX_CLIENTS = 1_000_000


def parse_rounds(text: str) -> dict[int, int]:
    """Parse the arrivals or departures of a command line, such as ``"10=5,20-24=30"``.

    Parameters
    ----------
    text : str
        Comma-separated parts ``client=round`` or ``first-last=round`` (both ends included). Spaces around
        parts are allowed. An empty text is an empty mapping.

    Returns
    -------
    dict of int to int
        Client -> round, as expected by `Membership`, which also checks the values.

    Raises
    ------
    ValueError
        If a part cannot be parsed, a range runs backwards, or a client occurs twice. The message gives the
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
