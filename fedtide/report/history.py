"""The records of a run as numbers by round: curves, events, failures, seconds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedtide.engine.observers import Record
from fedtide.report.plots import Numbers

PHASES = ("select", "broadcast", "transfer", "train", "collect", "aggregate", "evaluate", "write")
MAX_EVENTS = 2000  # kept of one run; the others are counted


class Event(NamedTuple):
    """An arrival, departure or decision in a round, with the numbers behind it."""

    round: int
    seconds: float | None
    kind: str
    client: int | None
    details: str


@dataclass(frozen=True)
class History:
    """The records of a run, as numbers by record."""

    rounds: Numbers
    uploads: Numbers  # this and the next two: totals up to the record
    megabytes: Numbers
    virtual_seconds: Numbers  # NaN without a clock
    score: Numbers  # NaN in rounds without an evaluation, as the loss is
    loss: Numbers
    phases: dict[str, Numbers]  # seconds that each phase of each round took
    events: list[Event]  # the first of num_events
    num_events: int
    failures: dict[str, dict[int, int]]  # how many replies failed or were rejected, by reason and round
    slim: list[Record]  # what the tables of a comparison need
    stopped: bool = False  # whether it ended before its last round, by its settings
    client_names: Sequence[str] = ()  # see `Run`

    @property
    def has_clock(self) -> bool:
        """Whether the trace has a virtual clock."""
        return bool(np.isfinite(self.virtual_seconds[1:]).any())


def history_of(
    records: Sequence[Record],
    metric: str = "accuracy",
    stopped: bool = False,
    client_names: Sequence[str] = (),
) -> History:
    """Return the history of a run from its records; `metric` is the key of the task's metric.

    `stopped`: whether its settings ended it before its last round.
    """
    events = [_event(record, event) for record in records for event in record.get("events") or []]
    events += _restarts(records)
    return History(
        rounds=_column(records, "round"),
        uploads=np.cumsum([float(len(record.get("active", []))) for record in records]),
        megabytes=np.cumsum([(r.get("bytes_up", 0) + r.get("bytes_down", 0)) / 1e6 for r in records]),
        virtual_seconds=_clock(records),
        score=_column(records, metric),
        loss=_column(records, "loss"),
        phases=_phases(records),
        events=sorted(events, key=lambda event: event.round)[:MAX_EVENTS],
        num_events=len(events),
        failures=_failures(records),
        slim=[_slim(record, metric) for record in records],
        stopped=stopped,
        client_names=client_names,
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
    """Return the seconds by phase; `write` stands in the record after the one that was written."""
    taken = [record.get("seconds") or {} for record in records]
    names = [*PHASES, *sorted({name for seconds in taken for name in seconds} - set(PHASES))]
    columns = {name: np.array([seconds.get(name) or 0.0 for seconds in taken]) for name in names}
    return {name: seconds for name, seconds in columns.items() if seconds.any()}


def _failures(records: Sequence[Record]) -> dict[str, dict[int, int]]:
    """Count the failed replies by reason and round; reasons that differ only in numbers are one."""
    found: dict[str, dict[int, int]] = {}
    for record in records:
        for reason, count in Counter(map(plain_reason, (record.get("failed") or {}).values())).items():
            found.setdefault(reason, {})[record["round"]] = count
    return dict(sorted(found.items(), key=lambda pair: -sum(pair[1].values())))


def plain_reason(reason: Any) -> str:
    """Return the reason of a failure without its numbers."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "…", str(reason))


def _restarts(records: Sequence[Record]) -> list[Event]:
    """Return the rounds in which the learning rate rises."""
    found = []
    for before, now in pairwise(records):
        old, new = before.get("learning_rate"), now.get("learning_rate")
        if old is not None and new is not None and new > old * (1 + 1e-9):
            details, seconds = f"from {old:.4g} to {new:.4g}", now.get("virtual_seconds")
            found.append(Event(now["round"], seconds, "learning rate restarts", None, details))
    return found


def _event(record: Record, event: Record) -> Event:
    """Name an event of a round by the decision; the other numbers are its details."""
    kind = str(event.get("event", "event")).replace("-", " ")
    if kind == "departure" and "objective" in event:
        kind = f"departure, objective {'kept' if event['objective'] == 'include' else 'dropped'}"
    if "boosted" in event:
        kind += ", boosted" if event["boosted"] else ", not boosted"
    if event.get("received", True) is False:
        kind += " without a reply"
    details = [
        f"{key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in event.items()
        if key not in ("event", "client", "boosted", "received")
    ]
    seconds = record.get("virtual_seconds")
    return Event(record["round"], seconds, kind, event.get("client"), ", ".join(details))


def _slim(record: Record, metric: str) -> Record:
    evaluated = [metric, "loss", "train_loss", "client_loss"]
    evaluated += [f"{who}_{metric}" for who in ("client", "worst_client", "tenth_percentile")]
    keys = ("round", *evaluated, "virtual_seconds", "device_seconds", "bytes_up", "bytes_down")
    kept = {key: record[key] for key in keys if key in record}
    steps = record.get("steps", [])
    kept |= {"steps": [None if None in steps else sum(steps)]} if steps else {}
    return kept | {"active": range(len(record.get("active", [])))}
