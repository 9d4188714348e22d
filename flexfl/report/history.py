"""What the records of a run's rounds amount to: curves, events, failures, seconds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexfl.report.records import Record

Numbers = NDArray[np.float64]

PHASES = ("select", "broadcast", "train", "collect", "aggregate", "evaluate", "write")
MOST_EVENTS = 2000  # of one run that are kept; further ones are counted


@dataclass(frozen=True)
class Event:
    """What happened to a client in a round, and the numbers that a decision rested on."""

    round: int
    seconds: float | None
    kind: str
    client: int | None
    details: str


@dataclass(frozen=True)
class History:
    """The records of a run, as numbers by round.

    Attributes
    ----------
    rounds, uploads, megabytes, virtual_seconds
        Of each record: its round, and what it took up to it; without a clock, the seconds are NaN.
    score, loss
        Of each record, the metric and the loss; NaN in rounds that were not evaluated.
    phases
        Seconds that each phase of each round took, by name.
    events, num_events
        The first of them, and how many there were.
    failures
        How many replies failed or were rejected in each round, by reason.
    slim
        Of each record what the tables of a comparison need.
    """

    rounds: Numbers
    uploads: Numbers
    megabytes: Numbers
    virtual_seconds: Numbers
    score: Numbers
    loss: Numbers
    phases: dict[str, Numbers]
    events: list[Event]
    num_events: int
    failures: dict[str, dict[int, int]]
    slim: list[Record]

    @property
    def has_clock(self) -> bool:
        """Whether the trace has a virtual clock."""
        return bool(np.isfinite(self.virtual_seconds[1:]).any())


def history_of(records: Sequence[Record], metric: str = "accuracy") -> History:
    """Reduce the records of a run, of which `metric` is the key of what its task reports."""
    events, num_events = _events(records)
    return History(
        rounds=_column(records, "round"),
        uploads=np.cumsum([float(len(record.get("active", []))) for record in records]),
        megabytes=np.cumsum([(r.get("bytes_up", 0) + r.get("bytes_down", 0)) / 1e6 for r in records]),
        virtual_seconds=_clock(records),
        score=_column(records, metric),
        loss=_column(records, "loss"),
        phases=_phases(records),
        events=events,
        num_events=num_events,
        failures=_failures(records),
        slim=[_slim(record, metric) for record in records],
    )


def _column(records: Sequence[Record], key: str) -> Numbers:
    values = [record.get(key) for record in records]
    return np.array([v if isinstance(v, int | float) else math.nan for v in values], np.float64)


def _clock(records: Sequence[Record]) -> Numbers:
    """Return the virtual seconds, which are 0 before training."""
    seconds = _column(records, "virtual_seconds")
    if len(records) and not records[0]["round"] and np.isfinite(seconds).any():
        seconds[0] = 0
    return seconds


def _phases(records: Sequence[Record]) -> dict[str, Numbers]:
    """Return the seconds by phase; `write` is recorded in the record after the one that was written."""
    taken = [record.get("seconds") or {} for record in records]
    names = [*PHASES, *sorted({name for seconds in taken for name in seconds} - set(PHASES))]
    columns = {name: np.array([float(s.get(name) or 0.0) for s in taken]) for name in names}
    return {name: seconds for name, seconds in columns.items() if seconds.any()}


def _failures(records: Sequence[Record]) -> dict[str, dict[int, int]]:
    """Count the failed replies by reason and round; reasons that differ in numbers only are one."""
    found: dict[str, dict[int, int]] = {}
    for record in records:
        for reason, count in Counter(map(plain_reason, (record.get("failed") or {}).values())).items():
            found.setdefault(reason, {})[record["round"]] = count
    return dict(sorted(found.items(), key=lambda pair: -sum(pair[1].values())))


def plain_reason(reason: Any) -> str:
    """Return the reason of a failure without its numbers."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "…", str(reason))


def _events(records: Sequence[Record]) -> tuple[list[Event], int]:
    found: list[Event] = []
    count = 0
    for record in records:
        seconds = record.get("virtual_seconds")
        for event in record.get("events") or []:
            count += 1
            if len(found) < MOST_EVENTS:
                found.append(_event(record["round"], seconds, event))
    for before, now in pairwise(records):
        old, new = before.get("learning_rate"), now.get("learning_rate")
        if old is not None and new is not None and new > old * (1 + 1e-9):
            count += 1
            details = f"from {old:.4g} to {new:.4g}"
            found.append(
                Event(now["round"], now.get("virtual_seconds"), "learning rate restarts", None, details)
            )
    return sorted(found, key=lambda event: event.round), count


def _event(server_round: int, seconds: float | None, event: Record) -> Event:
    """Name an event by what was decided; the other numbers are its details."""
    kind = str(event.get("event", "event")).replace("-", " ")
    if kind == "departure" and "objective" in event:
        kind = f"departure, its part {'kept' if event['objective'] == 'include' else 'dropped'}"
    if "boosted" in event:
        kind += ", boosted" if event["boosted"] else ", not boosted"
    if "received" in event:
        kind += "" if event["received"] else " without an answer"
    told = {
        key: value for key, value in event.items() if key not in ("event", "client", "boosted", "received")
    }
    details = ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in told.items())
    return Event(server_round, seconds, kind, event.get("client"), details)


def _slim(record: Record, metric: str) -> Record:
    kept = {key: record[key] for key in ("round", metric, "virtual_seconds") if key in record}
    sent = {key: record[key] for key in ("bytes_up", "bytes_down") if key in record}
    return kept | sent | {"active": range(len(record.get("active", [])))}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
