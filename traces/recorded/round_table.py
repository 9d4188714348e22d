"""Tables of rounds: which clients participate in each round, and how much work they complete."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace
from traces.files.clients import Clients
from traces.files.lines import whole_number
from traces.files.tables import read_numbers


@dataclass(frozen=True, kw_only=True)
class RoundTable(SeededTrace, name="table"):
    """Clients that follow a table of round,client,completion with one line per client online in a round.

    Rounds are counted from 1, clients are 0..N-1, and the completion is the finished fraction of E, 0..1; 0
    means that the client drops out mid-round. Instead of numbers, a column ``device`` may have names, as in a
    device log. Lines may come in any order. A client without a line in a round is offline. A round in which
    nobody is online has one line with only the round (``7,,``), so that missing rounds are detected.

    Attributes
    ----------
    file : str
        The table, CSV or JSON lines (see `traces.files.tables`).
    repeat : bool
        Whether the table starts over after its last round; otherwise nobody is online from then on.
    by_name : bool
        Whether devices are the clients of the same names, where the data name their clients.
    client_names
        The data's names of the clients, N or none.
    """

    file: str = ""
    repeat: bool = True
    by_name: bool = True
    client_names: Sequence[str] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._lines  # reads the file

    @cached_property
    def _clients(self) -> Clients:
        return Clients("trace table", self.num_clients, self.client_names if self.by_name else ())

    @cached_property
    def _lines(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """The first line of each round and of the one after the last; each line's client and completion."""
        t, client, completion = _read_table(self.file, self._clients)
        online = client >= 0
        first = np.searchsorted(t[online], np.arange(1, t[-1] + 2))
        return first, client[online], completion[online]

    @cached_property
    def devices(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._clients.names

    @property
    def repeats_after(self) -> float:
        return self.num_rounds if self.repeat else 0

    @property
    def num_rounds(self) -> int:
        """How many rounds the table has."""
        return len(self._lines[0]) - 1

    def availability(self, t: int) -> RoundAvailability:
        online = np.zeros(self.num_clients, np.bool_)
        completion = np.zeros(self.num_clients, np.float32)
        if self.repeat or t <= self.num_rounds:
            first, client, completed = self._lines
            i = (t - 1) % self.num_rounds
            lines = slice(first[i], first[i + 1])
            online[client[lines]] = True
            completion[client[lines]] = completed[lines]
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)


def _read_table(
    path: str, clients: Clients
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return round, client (-1: none) and completion of all lines, sorted by round and client."""
    rows = array("d")
    for line, (t, client, completion) in read_numbers(
        "trace table", path, ("round",), ("client", "completion"), clients.read
    ):
        place = f"trace table: {path}, line {line}"
        nobody = math.isnan(client)
        if nobody != math.isnan(completion):
            raise SettingsError(f"{place}: give both client and completion, or neither if nobody is online")
        if not nobody:
            clients.check(place, client)
            if not 0 <= completion <= 1:
                raise SettingsError(f"{place}: completion is {completion:g}, give a fraction from 0 to 1")
        whole_number(place, "round", t, 1)
        rows.extend((t, -1 if nobody else client, 0.0 if nobody else completion, line))
    table = np.asarray(rows).reshape(-1, 4)
    if table[:, 1].max(initial=-1) < 0:
        raise SettingsError(
            f"trace table: {path}: nobody is online in any round, write a line per online client"
        )
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    rounds, client, lines = table[:, [0, 1, 3]].astype(np.int64).T
    _check_rounds(path, rounds, client, lines)
    client[client >= 0] = clients.found(path, client[client >= 0])
    return rounds, client, table[:, 2].astype(np.float32)


def _check_rounds(path: str, t: NDArray[np.int64], k: NDArray[np.int64], line: NDArray[np.int64]) -> None:
    """Raise ValueError if lines occur twice or contradict each other, or if a round is missing."""
    repeated = np.flatnonzero((t[1:] == t[:-1]) & ((k[1:] == k[:-1]) | (k[:-1] < 0)))
    if len(repeated):
        i = repeated[0] + 1
        which = f"a line for client {k[i]}" if k[i] == k[i - 1] >= 0 else "a line without a client"
        raise SettingsError(
            f"trace table: {path}, line {line[i]}: round {t[i]} already has {which}, remove one of the two"
        )
    gap = np.flatnonzero(np.diff(t, prepend=0) > 1)
    if len(gap):
        i = gap[0]
        missing = (t[i - 1] if i else 0) + 1
        raise SettingsError(
            f"trace table: {path}, line {line[i]}: round {t[i]} is present but round {missing} is missing, "
            f"write a line '{missing},,' if nobody was online"
        )
