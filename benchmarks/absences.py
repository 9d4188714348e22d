"""Which boards were missing in which rounds of a run: its records, held against what was done to it."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from benchmarks.measure import table

Record = dict[str, Any]
AWAY = 15.0  # seconds: a round that begins so soon after a fault is over before the board is back
NOTICED = 120.0  # until a fault has shown: Flower refuses the board's key for a minute
LATE = "late reply"  # of a board that was only slow


@dataclass
class Fault:
    """A fault that was brought about at `begin` and undone at `end`, in seconds since 1970."""

    name: str
    boards: list[int]  # empty: the server
    is_missed: bool  # whether its boards have to be missing from a round that begins soon
    begin: float = 0.0  # 0: it never was
    end: float = 0.0
    absences: list[Absence] = field(default_factory=list)  # those that it explains


@dataclass
class Absence:
    """Rounds in a row in which a board's reply does not count; moments as those of a fault."""

    board: int
    first: int
    begin: float
    last: int = 0
    end: float = 0.0
    back: float | None = None  # when its next reply counted
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rounds(self) -> int:
        """How many."""
        return self.last - self.first + 1


def absences(records: Sequence[Record]) -> list[Absence]:
    """Return who was missing, by the records of the rounds; who has not come yet is not missing."""
    found: list[Absence] = []
    away: dict[int, Absence] = {}
    came: set[int] = set()
    for record in records:
        number, end = record["round"], record["time"]
        came |= {*record["available"]}
        for k in sorted(came):
            if k in record["active"]:
                if k in away:
                    away.pop(k).back = end
                continue
            if k not in away:
                found.append(Absence(k, number, _begin(record)))
                away[k] = found[-1]
            away[k].last, away[k].end = number, end
            away[k].reasons[_reason(record, k)] += 1
    return found


def _begin(record: Record) -> float:
    """Return when the clients of a round were asked."""
    return float(record["time"] - record["seconds"]["train"])


def _reason(record: Record, board: int) -> str:
    if str(board) in record["failed"]:
        return str(record["failed"][str(board)])
    if board in record.get("at_work", ()):
        return "at work"
    return "not asked" if board in record["available"] else "offline"


def explain(found: Sequence[Absence], faults: Sequence[Fault]) -> list[Absence]:
    """Give each absence to its fault, one of the board before one of the server; return those without."""
    others = []
    for absence in found:
        causes = [
            fault
            for fault in faults
            if (absence.board in fault.boards or not fault.boards)
            and fault.begin <= absence.end
            and absence.begin <= fault.end + NOTICED
        ]
        if causes:
            max(causes, key=lambda fault: (bool(fault.boards), fault.begin)).absences.append(absence)
        elif not any(reason.startswith(LATE) for reason in absence.reasons):
            others.append(absence)
    return others


def problems(records: Sequence[Record], faults: Sequence[Fault], boards: int) -> Iterator[str]:
    """Yield what should not be in the records, and give faults their absences."""
    for absence in explain(absences(records), faults):
        yield (
            f"board {absence.board} is missing in rounds {absence.first} to {absence.last} without a fault: "
            f"{', '.join(absence.reasons)}"
        )
    for fault, record in product(faults, records):
        soon = 0 < _begin(record) - fault.begin < AWAY
        if fault.is_missed and soon and not {*fault.boards}.isdisjoint(record["active"]):
            yield f"{fault.name}: boards {fault.boards} take part in round {record['round']}"
    if [record["round"] for record in records] != [*range(1, len(records) + 1)]:
        yield "rounds are missing, or there twice"
    tasks = Counter((k, _task(record, k)) for record in records for k in record["active"])
    if twice := [own for own, times in tasks.items() if times > 1]:
        yield f"counted twice (board, round): {twice}"
    if missing := {*range(boards)} - {k for record in records[-5:] for k in record["active"]}:
        yield f"not back at the end: boards {sorted(missing)}"


def _task(record: Record, board: int) -> int:
    """Return the round of the task that a counted reply answers."""
    late = {entry["client"]: int(entry["task"]) for entry in record.get("late", ())}
    return late.get(board, int(record["round"]))


def journal(faults: Sequence[Fault], records: Sequence[Record]) -> str:
    """Return a table of what was done, and what the records say of it."""
    rows = []
    for fault in faults:
        missed, says = Counter[int](), Counter[str]()
        for absence in fault.absences:
            missed[absence.board] += absence.rounds
            says += absence.reasons
        rows.append(
            [
                f"{(fault.begin - records[0]['time']) / 60:.1f}",
                fault.name,
                ", ".join(map(str, fault.boards)) if len(fault.boards) == 1 else "",
                ", ".join(f"{k}: {rounds}" for k, rounds in sorted(missed.items())),
                _back_after(fault, records),
                "; ".join(f"{text} ({times})" for text, times in says.most_common()),
            ]
        )
    header = ["minute", "fault", "board", "missing: rounds", "back after s", "the record says"]
    return table(header, rows)


def _back_after(fault: Fault, records: Sequence[Record]) -> float | None:
    """Return the seconds until all are back whom a fault took away; of the server, until the next round."""
    if not fault.boards:
        return next((r["time"] - fault.begin for r in records if r["time"] > fault.end), None)
    backs = [absence.back for absence in fault.absences]
    return max(back - fault.begin for back in backs) if backs and None not in backs else None


def summary(faults: Sequence[Fault], records: Sequence[Record]) -> str:
    """Return a table with a row for each kind of fault."""
    rows = []
    for name in dict.fromkeys(fault.name for fault in faults):
        own = [fault for fault in faults if fault.name == name]
        missed = [absence.rounds for fault in own for absence in fault.absences]
        backs = [back for fault in own if (back := _back_after(fault, records)) is not None]
        told = (reason for fault in own for absence in fault.absences for reason in absence.reasons)
        says = Counter(re.sub(r"\d+", "n", re.split(r"; | — ", reason)[0]) for reason in told)
        both = [f"{statistics.median(of):.0f}, {max(of):.0f}" if of else "" for of in (missed, backs)]
        rows.append([name, len(own), *both, "; ".join(text for text, _ in says.most_common(3))])
    header = ["fault", "times", "rounds missed: median, most", "back after s", "the record says"]
    return table(header, rows)
