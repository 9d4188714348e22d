"""The records of a run as columns: numbers and costs by round, events, failures, seconds of phases."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.observers import Record
from fedtide.engine.records import group_values

Numbers = NDArray[np.float64]

PHASES = ("select", "broadcast", "transfer", "train", "collect", "aggregate", "evaluate", "write")
MAX_EVENTS = 2000  # kept of one run; the others are counted


class Cost(NamedTuple):
    """The cost of a run up to some round; NaN: not known."""

    rounds: float
    uploads: float  # replies that counted
    megabytes_up: float  # sent by the clients
    megabytes_down: float
    local_steps: float  # of the replies that counted
    device_seconds: float  # that clients were at work, all together
    virtual_seconds: float  # on the trace's clock


@dataclass(frozen=True)
class History:
    """The R records of a run as columns of shape (R,)."""

    rounds: NDArray[np.int64]
    numbers: Mapping[str, Numbers]  # every number of the records by its key, such as `loss`; NaN: missing
    uploads: NDArray[np.int64]  # of each round
    local_steps: NDArray[Any]  # likewise; NaN where a client did not report them
    phases: Mapping[str, Numbers]  # seconds; `write` is in the record after the one that was written
    events: Sequence[tuple[int, Record]]  # the first of num_events: rows and events
    num_events: int
    failures: Mapping[str, Mapping[int, int]]  # replies that did not count, by reason and round

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """Read the records, one after the other."""
        rounds, uploads, steps = [], [], []
        numbers, seconds = defaultdict[str, Any](_Column), defaultdict[str, Any](_Column)
        failures: dict[str, dict[int, int]] = defaultdict(dict)
        events: list[tuple[int, Record]] = []
        num_events = 0
        for row, record in enumerate(records):
            rounds.append(record["round"])
            uploads.append(len(record.get("active") or ()))
            done = record.get("steps") or ()
            steps.append(math.nan if None in done else sum(done))
            for key, value in record.items():
                if type(value) in (int, float):
                    numbers[key].put(row, value)
            for key, value in group_values(record).items():
                numbers[key].put(row, math.nan if value is None else value)
            for phase, taken in (record.get("seconds") or {}).items():
                seconds[phase].put(row, taken or 0)
            for reason, count in Counter(map(_plain, (record.get("failed") or {}).values())).items():
                failures[reason][record["round"]] = count
            found = record.get("events") or ()
            num_events += len(found)
            events += [(row, event) for event in found[: MAX_EVENTS - len(events)]]
        names = [*PHASES, *sorted({*seconds} - {*PHASES})]
        phases = {name: np.nan_to_num(seconds[name].padded(len(rounds))) for name in names}
        return cls(
            rounds=np.array(rounds, np.int64),
            numbers={key: column.padded(len(rounds)) for key, column in numbers.items()},
            uploads=np.array(uploads, np.int64),
            local_steps=np.array(steps),
            phases={name: taken for name, taken in phases.items() if taken.any()},
            events=events,
            num_events=num_events,
            failures=dict(sorted(failures.items(), key=lambda pair: -sum(pair[1].values()))),
        )

    def __len__(self) -> int:
        return len(self.rounds)

    def column(self, key: str) -> Numbers:
        """Return the numbers of a key; all are NaN if no record has it."""
        return self.numbers.get(key, np.full(len(self), np.nan))

    def evaluated(self, *keys: str) -> NDArray[np.intp]:
        """Return the rows that have a number of one of these keys."""
        return np.flatnonzero(np.isfinite([self.column(key) for key in keys]).any(axis=0))

    @cached_property
    def clock(self) -> Numbers:
        """The virtual seconds at the end of each round, 0 before training; NaN: not known."""
        seconds = self.column("virtual_seconds").copy()
        if len(self) and not self.rounds[0] and np.isfinite(seconds).any():
            seconds[0] = 0
        return seconds

    @property
    def has_clock(self) -> bool:
        return bool(np.isfinite(self.clock[1:]).any())

    @cached_property
    def costs(self) -> Mapping[str, NDArray[Any]]:
        """The costs up to each record, by the names of `Cost`."""
        worked = self.column("device_seconds")
        up, down = (np.nan_to_num(self.column(key)).cumsum() / 1e6 for key in ("bytes_up", "bytes_down"))
        known = np.logical_or.accumulate(np.isfinite(worked))
        known |= known.any() & (self.rounds == 0)  # nobody works before training
        return {
            "rounds": self.rounds,
            "uploads": self.uploads.cumsum(),
            "megabytes_up": up,
            "megabytes_down": down,
            "local_steps": self.local_steps.cumsum(),
            "device_seconds": np.where(known, np.nan_to_num(worked).cumsum(), np.nan),
            "virtual_seconds": np.fmax.accumulate(self.clock),
        }

    def cost(self, row: int) -> Cost:
        """Return the cost up to a record."""
        return Cost(**{name: column[row].item() for name, column in self.costs.items()})


def bins(count: int, most: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the starts and lengths of at most `most` runs of neighbours that `count` values are put into."""
    starts = np.arange(min(count, most), dtype=np.intp) * count // max(1, min(count, most))
    return starts, np.diff([*starts, count])


class _Column:
    """Numbers by row, put in order; NaN for the rows between."""

    def __init__(self) -> None:
        self.values = array("d")

    def put(self, row: int, value: float) -> None:
        if missing := row - len(self.values):
            self.values.extend(repeat(math.nan, missing))
        self.values.append(value)

    def padded(self, size: int) -> Numbers:
        self.values.extend(repeat(math.nan, size - len(self.values)))
        return np.array(self.values)


def _plain(reason: Any) -> str:
    """Leave out the numbers of a reason: failures that differ only in these are counted together."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "…", str(reason))
