"""What a run prints: a progress bar or plain lines, and a table at the end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flexfl.config import Settings
from flexfl.engine.observers import Observer, Record

PLAIN_LINES = 40  # about how many rounds are printed if the output is not a terminal


class ProgressReport(Observer):
    """Shows each round: accuracy, loss, and participation; and in the end a table.

    Parameters
    ----------
    console
        Where to print.

    Attributes
    ----------
    client_fits
        Updates that were aggregated so far.
    failures
        How often clients failed, by reason.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.client_fits = 0
        self.failures: Counter[str] = Counter()
        self._virtual_seconds: float | None = None
        self._score, self._evaluated = "", 0
        self._bar = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def start(self, settings: Settings) -> None:
        """Show the progress bar."""
        self.num_rounds = settings.num_rounds
        self._task = self._bar.add_task("", total=settings.num_rounds)
        self._bar.start()

    def finish(self, summary: dict[str, Any]) -> None:
        """Show the results, below the progress bar."""
        self._bar.stop()
        self.console.print(final_table(summary, self.failures, self._virtual_seconds))

    def close(self) -> None:
        """Let go of the terminal."""
        self._bar.stop()

    def round(self, record: Record) -> None:
        """Show one round."""
        self._virtual_seconds = record.get("virtual_seconds")
        server_round, active = record["round"], record.get("active", [])
        self.client_fits += len(active)
        self.failures.update(record.get("failed", {}).values())
        score = self._score and f"{self._score} (round {self._evaluated})"
        if "loss" in record:
            accuracy = record.get("accuracy")
            shown = "" if accuracy is None else f"accuracy {accuracy:.4f}  "
            self._score = f"{shown}loss {record['loss']:.4f}"
            if "client_accuracy" in record:
                self._score += f"  at clients {record['client_accuracy']:.4f}"
            score, self._evaluated = self._score, server_round
        participation = _participation(record)
        self._bar.update(self._task, completed=server_round, description=f"{score}  {participation}")
        for event in record.get("events", []):
            self._print(f"round {server_round}: " + ", ".join(f"{k} {_short(v)}" for k, v in event.items()))
        every = max(1, self.num_rounds // PLAIN_LINES)
        due = server_round % every == 0 or server_round == self.num_rounds
        if not self.console.is_terminal and due:
            self._print(f"round {server_round}/{self.num_rounds}  {score}  {participation}")

    def _print(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def final_table(
    summary: dict[str, Any], failures: Counter[str], virtual_seconds: float | None = None
) -> Table:
    """Tabulate the results of a run; `virtual_seconds` are given if its trace has a clock."""
    ended = ", interrupted" if summary.get("interrupted") else ""
    table = Table(title=f"{summary['strategy']} on {summary['task']}{ended}", show_header=False)
    rows = {
        "model": summary["model"],
        "accuracy": summary["final"]["accuracy"],
        "accuracy at clients": summary["final"].get("client_accuracy"),
        "loss": summary["final"]["loss"],
        "loss at clients": summary["final"].get("client_loss"),
        "worst of the clients": summary["final"].get("worst_client_accuracy"),
        "tenth percentile of the clients": summary["final"].get("tenth_percentile_accuracy"),
        "training loss": summary["final"]["train_loss"],
        "rounds": summary["rounds"],
        "client updates": summary["client_fits"],
        "seconds": summary["seconds"],
    }
    for name, value in rows.items():
        if value is not None or "clients" not in name:  # only some methods evaluate at clients
            table.add_row(name, _short(value))
    if virtual_seconds is not None:
        table.add_row("virtual seconds", f"{virtual_seconds:.0f} ({virtual_seconds / 3600:.1f} hours)")
    for reason, count in failures.most_common(5):
        table.add_row("failed", f"{count} x {reason}")
    table.add_row("run folder", str(summary["run_dir"]))
    return table


def _participation(record: dict[str, Any]) -> str:
    """Summarise the participation in a round."""
    if not record["round"]:
        return ""
    counts = {
        "incomplete": record.get("incomplete", 0),
        "failed": len(record["failed"]),
        "offline": record["offline"],
    }
    others = "".join(f", {count} {kind}" for kind, count in counts.items() if count)
    active = len(record["active"])
    return f"{active} client{'' if active == 1 else 's'}{others}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
