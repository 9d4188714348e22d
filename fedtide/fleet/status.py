"""How the boards of a fleet are: what the SuperLink knows of their nodes, and what a run has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from fedtide.base.errors import SettingsError
from fedtide.base.wording import duration, plain
from fedtide.engine.observers import Record
from fedtide.engine.records import is_number
from fedtide.fleet.boards import Board
from fedtide.fleet.superlink import GONE, Node

RUNS = (Path("/var/lib/fedtide/runs"), Path("runs"))
"""Where runs are looked for, the first that is there."""
UNITS = {"temperature": " °C", "disk-free": " MB", "memory-free": " MB", "battery": " %", "energy": " J"}
"""Of what boards report, see clients/device/health.py."""


@dataclass
class State:
    """A board: who it is, whether it is there, and what a run has recorded of it."""

    name: str
    client: int | None = None
    node: int | None = None
    state: str = "unknown"  # online, offline, registered (never there), or unknown to the SuperLink
    since: float | None = None  # seconds since the epoch
    replied: float | None = None  # when its last counted reply came
    round: int | None = None  # of that reply
    replies: int = 0  # that counted
    failures: int = 0
    reason: str = ""  # of the last failure
    speed: float | None = None  # local steps a second of the last counted reply
    reported: dict[str, Any] = field(default_factory=dict)  # by the board itself, with its last reply

    def as_json(self) -> dict[str, Any]:
        """Return it with the names of the table."""
        return {**vars(self), "node": None if self.node is None else str(self.node)}


def newest_run(folder: str | None) -> Path | None:
    """Return the run folder that was written to last; `folder` is it, or has it; None: there is none."""
    if folder and not Path(folder).is_dir():
        raise SettingsError(f"run {folder}: there is no such folder")
    places = [Path(folder)] if folder else [place for place in RUNS if place.is_dir()][:1]
    depths = ("metrics.jsonl", "*/metrics.jsonl", "*/*/metrics.jsonl")
    there = [file for place in places for depth in depths for file in place.glob(depth) if file.is_file()]
    return max(there, key=lambda file: file.stat().st_mtime).parent if there else None


def states(nodes: Iterable[Node], boards: Mapping[str, Board], records: Iterable[Record]) -> list[State]:
    """Return the state of each board, those of the file first, and of whoever else takes part."""
    found = {name: State(name, board.client, board.node) for name, board in boards.items()}
    numbers = {board.node: name for name, board in boards.items()}
    for node in (node for node in nodes if node.state != GONE):
        name = numbers.get(node.number) or node.name or str(node.number)
        own = found.setdefault(name, State(name))
        if own.node in (None, node.number):
            own.node, own.state = node.number, node.state
            own.since = datetime.fromisoformat(node.since).timestamp() if node.since else None
    of_client = {own.client: own for own in found.values() if own.client is not None}
    for record in records:
        with suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):  # it is no board's
            _take(record, found, of_client)
    return [*{id(own): own for own in (*found.values(), *of_client.values())}.values()]


def _take(record: Record, found: Mapping[str, State], of_client: dict[int, State]) -> None:
    """Take in what a round of boards has recorded, which has a time."""
    now = float(record["time"])
    for client, name in record.get("names", {}).items():
        if name in found:
            of_client[int(client)] = found[name]
            found[name].client = int(client)

    def board(client: Any) -> State:
        number = int(client)
        return of_client.setdefault(number, State(f"client {number}", number))

    active, steps = record.get("active", []), record.get("steps", [])
    took = record.get("reply_seconds", [None] * len(active))
    for client, done, seconds in zip(active, steps, took, strict=False):
        if isinstance(client, int):
            own = board(client)
            own.replied, own.round, own.replies = now, record["round"], own.replies + 1
            own.speed = done / seconds if done and seconds else None
    for client, reason in record.get("failed", {}).items():
        if client.isdecimal():
            own = board(client)
            own.failures, own.reason = own.failures + 1, str(reason)
    for client, reported in record.get("boards", {}).items():
        if client.isdecimal() and isinstance(reported, dict):
            board(client).reported = reported


def table_of(boards: Iterable[State], now: float) -> Group:
    """Return a table with a row for each board, for 80 columns, and below it lines that may be longer."""
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("board", "client", "state", "for", "last reply", "round", "replies", "failed", "steps/s"):
        is_number = title in ("client", "round", "replies", "failed", "steps/s")
        table.add_column(title, no_wrap=title in ("board", "state"), justify="right" if is_number else "left")
    lines = []
    for own in boards:
        name = plain(own.name, 63)
        row = [
            *(name, own.client, own.state, _ago(own.since, now), _ago(own.replied, now)),
            *(own.round, own.replies, own.failures, None if own.speed is None else f"{own.speed:.3g}"),
        ]
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
        if own.reason:
            lines.append(f"{name} failed last: {plain(own.reason)}")
        if own.reported:
            reports = ", ".join(_shown(key, value) for key, value in own.reported.items())
            lines.append(f"{name} reports: {reports}")
    return Group(table, *map(escape, lines))


def prometheus(boards: Iterable[State], now: float) -> str:
    """Return the states as Prometheus reads them (text format 0.0.4)."""
    lines: dict[str, list[str]] = {}
    for own in boards:
        board = plain(own.name, 63).replace("\\", "\\\\").replace('"', '\\"')
        labels = f'board="{board}",client="{"" if own.client is None else own.client}"'
        values: dict[str, Any] = {
            "up": int(own.state == "online"),
            "last_reply_age_seconds": None if own.replied is None else now - own.replied,
            "last_reply_round": own.round,
            "replies_counted": own.replies,
            "replies_failed": own.failures,
            "steps_per_second": own.speed,
        }
        values |= {f"reported_{key.replace('-', '_')}": value for key, value in own.reported.items()}
        for name, value in values.items():
            if is_number(value):
                lines.setdefault(name, []).append(f"fedtide_board_{name}{{{labels}}} {value:g}")
    return "".join(
        f"# TYPE fedtide_board_{name} gauge\n" + "".join(f"{line}\n" for line in own)
        for name, own in lines.items()
    )


def _ago(moment: float | None, now: float) -> str:
    return "" if moment is None else duration(max(0.0, now - moment))


def _shown(key: str, value: Any) -> str:
    if is_number(value):
        value = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    said = plain(value, 40)
    return f"{plain(key, 30)} {said}{UNITS.get(key, '')}"
