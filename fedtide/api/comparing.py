"""A comparison with its page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from fedtide.comparison.compare import Comparison, compare
from fedtide.config.grid import Cell


def compare_and_report(
    cells: Sequence[Cell], console: Console, reach: float | None, fresh: bool
) -> Comparison:
    """Run a comparison and write its page; see `compare`."""
    from fedtide.report.after_run import report_comparison  # imports PyTorch, which the driver does without

    comparison = compare(cells, console, reach, fresh)
    report_comparison(comparison, cells[0].settings, console)
    return comparison
