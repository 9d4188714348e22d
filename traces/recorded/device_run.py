"""Runs on devices replayed: who took part in which round, and how much of its work each client did."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace, microseconds
from traces.clock import Tasks
from traces.files.lines import decode_line, json_object, open_data

_MAX_RECORD_BYTES = 16 << 20
_GIVE = "give metrics.jsonl of a run on devices"
_ITEMS: dict[str, Any] = {  # what the lists and objects in a record hold
    **dict.fromkeys(("members", "available", "selected", "active", "planned", "at_work"), int),
    "replied": list,
    "steps": int | None,
    "late": dict,
    "events": dict,
    "failed": str,
    "seconds": int | float,
}
_EVENTS = ("arrival", "departure", "farewell")
_LATE = re.compile(r"late reply of round ([0-9]{1,9})")

Record = dict[str, Any]


class _Round(NamedTuple):
    """What the record of a round says: who was there and could be asked, and, by client, what came of it."""

    members: list[int]
    available: list[int]
    completion: dict[int, float]
    late: dict[int, int]
    lost: list[int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DeviceRun(SeededTrace, name="run"):
    """Clients that do what they did in a run on devices, given by its `metrics.jsonl`.

    Who was connected and free is online; who was asked and whose reply did not count drops out. A client that
    was free but was not asked would have completed as much as in the last round in which it did something
    (before the first such round: as in that one; if there is none, all). Late replies are late by as much.

    A run in event time is replayed in event time, too, with the same `round_ends`: rounds and tasks end when
    they ended there. A client that was not asked in a round would have taken as many rounds as for its last
    task. Without `round_ends`, it is replayed by rounds, as any other.

    Attributes
    ----------
    file : str
        `metrics.jsonl` of a run on devices.
    repeat : bool
        Whether participation starts over after the last round, among those who are members by then;
        otherwise nobody is online from then on.
    """

    role = "run"
    file: str = ""
    repeat: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._ends, self._passed  # reads the file

    @cached_property
    def _records(self) -> list[Record]:
        return list(_read_records(self.file, self.num_clients))

    @cached_property
    def _rounds(self) -> list[_Round]:
        return _rounds(self._records)

    @cached_property
    def _ends(self) -> list[dict[int, int]]:
        """When the tasks of each round ended, by client, in event time."""
        if not self.round_ends:
            return []
        _check_event_time(self.file, self._records, self.num_clients)
        return _ends(self._records)

    @cached_property
    def _passed(self) -> list[int]:
        """When the first round began, and when each round ended."""
        if self.round_ends:
            seconds = [0.0, *(record["virtual_seconds"] for record in self._records)]
        else:
            seconds = [*accumulate((r.seconds for r in self._rounds), initial=0.0)]
        return [int(moment) for moment in microseconds(seconds)]

    @property
    def num_rounds(self) -> int:
        """How many rounds the run had."""
        return len(self._rounds)

    @property
    def round_ends(self) -> int:
        """B, the replies that ended a round; 0: its rounds were not those of event time."""
        return int(self._records[0]["round_ends"])

    @cached_property
    def has_late_replies(self) -> bool:  # type: ignore[override]
        return any(r.late for r in self._rounds)

    def availability(self, t: int) -> RoundAvailability:
        member, online = np.zeros((2, self.num_clients), np.bool_)
        completion = np.zeros(self.num_clients, np.float32)
        member[self._rounds[min(t, self.num_rounds) - 1].members] = True
        if (now := self._of(t)) is not None:
            online[now.available] = True
            completion[[*now.completion]] = [*now.completion.values()]
        online &= member
        return RoundAvailability(member, online, completion * online)

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return which clients left without handing in their state (see `Trace.lost`)."""
        lost = np.zeros(self.num_clients, np.bool_)
        if (now := self._of(t)) is not None:
            lost[now.lost] = True
        return lost

    def delay(self, t: int) -> NDArray[np.int32]:
        delay = np.zeros(self.num_clients, np.int32)
        if (now := self._of(t)) is not None:
            delay[[*now.late]] = [*now.late.values()]
        return delay

    def ends(self, t: int) -> int:
        cycles, rest = divmod(t, self.num_rounds)
        return cycles * self._passed[-1] + self._passed[rest]

    def tasks(self, t: int, clients: NDArray[np.intp]) -> Tasks:
        """Return what becomes of tasks of round t in event time; clients have shape (K,)."""
        passed = self.ends(t) - self._passed[(t - 1) % self.num_rounds + 1]
        ends = self._ends[(t - 1) % self.num_rounds]
        moments = [
            passed + ends[k] if k in ends else self.ends(t + self._rounds_taken(t, k))
            for k in clients.tolist()
        ]
        return Tasks(np.array(moments, np.int64), self.round(t).completion[clients].astype(np.float64))

    def is_over(self, t: int) -> bool:
        """Whether the recording is over before round t."""
        return self._of(t) is None

    def _rounds_taken(self, t: int, client: int) -> int:
        """Return how many rounds later than in its own a client's last task before round t ended."""
        before = range((t - 1) % self.num_rounds, -1, -1)
        last = next((s for s in before if client in self._ends[s]), None)
        return 0 if last is None else bisect_left(self._passed, self._ends[last][client]) - 1 - last

    def _of(self, t: int) -> _Round | None:
        """Return the recorded round that is replayed in round t; None: the recording is over."""
        if t > self.num_rounds and not self.repeat:
            return None
        return self._rounds[(t - 1) % self.num_rounds]


def _read_records(file: str, num_clients: int) -> Iterator[Record]:
    """Yield the checked records of the training rounds."""
    t = 0
    with open_data("trace run", file) as lines:
        for number in count(1):
            line = lines.readline(_MAX_RECORD_BYTES + 1)
            place = f"trace run: {file}, line {number}"
            if not line:
                break
            if (text := decode_line(place, line, _MAX_RECORD_BYTES)) is None:
                continue
            record = json_object(place, text)
            if not isinstance(record.get("round"), int):
                raise SettingsError(f"{place}: not the record of a round; {_GIVE}")
            if record["round"] == 0:
                continue
            t += 1
            if record["round"] != t:
                raise SettingsError(f"{place}: round {record['round']!r} follows round {t - 1}")
            yield _checked(place, record, num_clients)
    if not t:
        raise SettingsError(f"trace run: {file}: no round found; {_GIVE}")


def _checked(place: str, record: Record, num_clients: int) -> Record:
    """Return the record of a round on devices, with defaults for missing keys."""
    if "available" not in record or (record["round"] == 1 and "members" not in record):
        raise SettingsError(
            f"{place}: the record does not say who was `available`: this is not a run on devices, or "
            "one of an earlier version; what a simulation replays is `trace` in its config.toml"
        )
    nothing: dict[str, Any] = {key: [] for key in ("members", "late", "events", "at_work", "replied")}
    record = {**nothing, "failed": {}, "seconds": {}, "round_ends": 0, **record}
    for key, item in _ITEMS.items():
        kind = dict if key in ("failed", "seconds") else list
        found: Any = record.get(key)
        values = found.values() if isinstance(found, dict) else found
        if not isinstance(found, kind) or not all(isinstance(value, item) for value in values):
            raise SettingsError(f"{place}: {key!r} is {found!r:.60}; {_GIVE}")
    record["events"] = [e for e in record["events"] if e.get("event") in _EVENTS]
    clients = [k for key in ("members", "available", "selected", "active", "at_work") for k in record[key]]
    for client in (*clients, *(entry.get("client") for entry in (*record["late"], *record["events"]))):
        if not isinstance(client, int) or not 0 <= client < num_clients:
            last = num_clients - 1
            raise SettingsError(f"{place}: client {client!r} does not exist, the clients are 0 to {last}")
    if not len(record["active"]) == len(record["planned"]) == len(record["steps"]):
        raise SettingsError(f"{place}: 'active', 'planned' and 'steps' are not of the same length")
    if not isinstance(record["round_ends"], int):
        raise SettingsError(f"{place}: 'round_ends' is {record['round_ends']!r:.60}; {_GIVE}")
    for steps, planned in zip(record["steps"], record["planned"], strict=True):
        if not 1 <= (planned if steps is None else steps) <= planned:
            raise SettingsError(f"{place}: {steps!r} steps of {planned!r} were done, give 1 to all of them")
    return record


def _check_event_time(file: str, records: list[Record], num_clients: int) -> None:
    """Check when rounds and tasks ended."""
    before: float = 0.0
    for t, record in enumerate(records, 1):
        end, place = record.get("virtual_seconds"), f"trace run: {file}, round {t}"
        if not isinstance(end, int | float) or not before <= end < math.inf:
            raise SettingsError(f"{place}: 'virtual_seconds' is {end!r:.60}; {_GIVE}")
        for task in record["replied"]:
            match task:
                case [int(client), int(of), int() | float() as moment] if (
                    0 <= client < num_clients and 1 <= of <= t and 0 <= moment <= end
                ):
                    continue
            raise SettingsError(
                f"{place}: 'replied' has {task!r:.60}, not a client, a round and a moment; {_GIVE}"
            )
        before = end


def _ends(records: list[Record]) -> list[dict[int, int]]:
    """Return when the tasks of each round ended, by client; those without a reply: with the round.

    What was open at the end of the recording ends after it.
    """
    ends: list[dict[int, int]] = [{} for _ in records]
    given: dict[int, int] = {}  # the index of the round of each client's task
    before = 0
    for t, record in enumerate(records):
        for client in given.keys() - set(record["at_work"]):
            ends[given.pop(client)].setdefault(client, before)
        given |= dict.fromkeys(record["selected"], t)
        for client, task, moment in record["replied"]:
            ends[task - 1][client] = int(microseconds(moment))
        before = int(microseconds(record["virtual_seconds"]))
    for client, t in given.items():
        ends[t].setdefault(client, before + 1)
    return ends


def _rounds(records: list[Record]) -> list[_Round]:
    """Return what happened in each round."""
    done: list[dict[int, float]] = [{} for _ in records]  # by the round of the task
    late: list[dict[int, int]] = [{} for _ in records]
    for t, record in enumerate(records):
        task = {entry["client"]: entry.get("task") for entry in record["late"]}
        for client, steps, planned in zip(record["active"], record["steps"], record["planned"], strict=True):
            of = _task(task.get(client), t)
            done[of][client] = 1.0 if steps is None else steps / planned
            late[of] |= {client: t - of} if of < t else {}
        for name, reason in record["failed"].items():
            match = _LATE.match(reason)
            of = _task(match and int(match[1]), t)
            if of < t and name.isdecimal() and int(name) in records[of]["selected"]:
                late[of][int(name)] = t - of
    usual: dict[int, float] = {}
    for shares in reversed(done):
        usual |= shares
    rounds = []
    members = {*records[0]["members"]}
    for record, shares, delays in zip(records, done, late, strict=True):
        usual |= shares
        dropped = set(record["selected"]) - shares.keys() - delays.keys()
        completion = {k: 0.0 if k in dropped else usual.get(k, 1.0) for k in record["available"]}
        silent = []
        for event in record["events"]:
            if event["event"] == "arrival":
                members.add(event["client"])
            elif event["event"] == "departure":
                members.discard(event["client"])
            elif not event.get("received"):
                silent.append(event["client"])
        passed = float(sum(record["seconds"].values()))
        rounds.append(_Round([*members], record["available"], completion, delays, silent, passed))
    return rounds


def _task(task: Any, t: int) -> int:
    """Return the index of the round of a task, given its number, as it is seen from round index t."""
    return task - 1 if isinstance(task, int) and 0 < task <= t else t
