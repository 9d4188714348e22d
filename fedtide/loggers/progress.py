"""What a run prints: a progress bar or plain lines, and a table at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedtide.base import dotted
from fedtide.base.memory import held_memory
from fedtide.base.wording import count, duration, say
from fedtide.config import Settings
from fedtide.engine.observers import Observer, Record
from fedtide.tasks import ACCURACY, Metric

MOST_NAMED = 3  # of the clients that failed in a round
MOST_REASONS = 5  # for which clients failed
PLAIN_LINES = 40  # about how many rounds are printed if the output is not a terminal


class ProgressReport(Observer):
    """Shows each round: metric, loss, and participation; and in the end a table."""

    def __init__(self, console: Console, metric: Metric = ACCURACY) -> None:
        self.console, self.metric = console, metric
        self.failures: Counter[str] = Counter()  # of clients, by reason
        self._virtual_seconds: float | None = None
        self._printed = 0  # of PLAIN_LINES
        self._score, self._evaluated = "", 0
        self._boards: dict[str, str] = {}  # their names, by client
        self._bar = progress_bar("round ", console)

    def start(self, settings: Settings) -> None:
        self.num_rounds, self.until = settings.num_rounds, settings.until
        holder = "driver " if settings.engine == "ray" else ""
        self._task = self._bar.add_task("", total=settings.num_rounds, holder=holder)
        self._bar.start()

    def finish(self, summary: dict[str, Any]) -> None:
        self._bar.stop()
        self.console.print(final_table(summary, self.failures, self._virtual_seconds))

    def close(self) -> None:
        self._bar.stop()

    def recall(self, record: Record) -> None:
        self._virtual_seconds = record.get("virtual_seconds")
        self._boards |= record.get("names", {})
        self.failures.update(record.get("failed", {}).values())

    def round(self, record: Record) -> None:
        server_round, known = record["round"], len(self.failures)
        self.recall(record)
        for reason in [*self.failures][known:MOST_REASONS]:  # others follow in the table
            say(self._bar.console, f"round {server_round}: failed: {reason}")
        score = self._score and f"(round {self._evaluated}: {self._score})"
        if "loss" in record:
            value = record.get(self.metric.key)
            shown = "" if value is None else f"{self.metric.title} {value:.4f}  "
            self._score = f"{shown}loss {record['loss']:.4f}"
            if (of_clients := record.get(f"client_{self.metric.key}")) is not None:
                self._score += f"  at clients {of_clients:.4f}"
            score, self._evaluated = self._score, server_round
        ended = f", {duration(record['virtual_seconds'])}" if "begin" in record else ""  # in event time
        participation = _participation(record, self._boards) + ended
        self._bar.update(self._task, completed=server_round, description=f"{score}  {participation}")
        for event in record.get("events", []):
            text = ", ".join(f"{k} {_short(v)}" for k, v in event.items())
            say(self._bar.console, f"round {server_round}: {text}")
        for note in record.get("notes", []):
            say(self._bar.console, f"round {server_round}: {note}")
        if not self.console.is_terminal and self._is_due(server_round):
            say(self._bar.console, f"round {server_round}/{self.num_rounds}  {score}  {participation}")

    def _is_due(self, server_round: int) -> bool:
        """Whether a round is printed in a pipe: about one in forty, by number or by virtual time."""
        every = max(1, self.num_rounds // PLAIN_LINES)
        before = self._printed
        if self.until:
            self._printed = int(PLAIN_LINES * (self._virtual_seconds or 0) / self.until)
        return server_round % every == 0 or server_round == self.num_rounds or self._printed > before


class Description(TextColumn):
    """The description of a task and, where it names a `holder`, the memory that this process now holds."""

    def render(self, task: Task) -> Text:
        """Return the column's text; it is called when the bar is drawn."""
        text = super().render(task)
        if "holder" in task.fields and (held := held_memory()):
            text.append(f"  {task.fields['holder']}{held / 2**30:.1f} GB")
        return text


class Pace:
    """How long the rest of a task takes at the pace of the parts that were done here; others were known."""

    def __init__(self) -> None:
        self.begin, self.done = time.perf_counter(), 0

    def left(self, task: Task) -> str:
        """Count one more part, and return the end of a line; empty: it was the last."""
        self.done += 1
        seconds = (time.perf_counter() - self.begin) * (task.remaining or 0) / self.done
        return f", about {duration(round(seconds))} left" if seconds else ""


def progress_bar(what: str, console: Console) -> Progress:
    """Make the line that shows how many of a task's parts are done, the time left, and its description.

    The description gets what is left of the line: it is cut where the terminal is narrow.
    """
    return Progress(
        TextColumn(what + "{task.completed}/{task.total}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=10, table_column=Column(min_width=10)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        Description(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        console=console,
        disable=not console.is_terminal,
        expand=True,
    )


def final_table(
    summary: dict[str, Any], failures: Counter[str], virtual_seconds: float | None = None
) -> Table:
    """Tabulate the results of a run; `virtual_seconds` are given if its trace has a clock."""
    ended = ", interrupted" if summary.get("interrupted") else ""
    final, (key, *others) = summary["final"], [metric["name"] for metric in summary["metrics"]]
    tested, clients = count(final.get("tested_examples", 0), "example"), final.get("tested_clients")
    title = escape(dotted.shown(f"{summary['strategy']} on {summary['task']}{ended}"))
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # the path of the run folder is to be copied
    rows = {
        "model": summary["model"],
        **{name.replace("_", " "): final[name] for name in (key, *others)},
        "tested on": tested if clients is None else f"{tested} of {count(clients, 'client')}",
        f"{key.replace('_', ' ')} at clients": final.get(f"client_{key}"),
        "loss": final["loss"],
        "loss at clients": final.get("client_loss"),
        "worst of the clients": final.get(f"worst_client_{key}"),
        "tenth percentile of the clients": final.get(f"tenth_percentile_{key}"),
        "training loss": final["train_loss"],
        "rounds": summary["rounds"],
        "client updates": summary["client_fits"],
        "seconds": summary["seconds"],
    }
    for name, value in rows.items():
        if value is not None or "clients" not in name:  # only some methods evaluate at clients
            table.add_row(name, escape(_short(value)))
    if virtual_seconds is not None:
        table.add_row("virtual seconds", f"{virtual_seconds:.0f} ({duration(virtual_seconds)})")
    if "stopped" in summary:
        table.add_row("stopped by", escape(summary["stopped"]))
    for reason, times in failures.most_common(MOST_REASONS):
        table.add_row("failed", escape(f"{times} x {reason}"))
    table.add_row("run folder", escape(str(summary["run_dir"])))
    return table


def _participation(record: dict[str, Any], boards: Mapping[str, str]) -> str:
    """Summarise the participation in a round; those who failed have the names of their boards."""
    if not record["round"]:
        return ""
    counts = {
        "incomplete": record.get("incomplete", 0),
        "failed": len(record["failed"]),
        "offline": record["offline"],
    }
    names = [boards.get(client, client) for client in record["failed"]]
    more = ", ..." if len(names) > MOST_NAMED else ""
    who = {"failed": f" ({', '.join(names[:MOST_NAMED])}{more})"}
    others = "".join(f", {number} {kind}{who.get(kind, '')}" for kind, number in counts.items() if number)
    return f"{count(len(record['active']), 'client')}{others}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
