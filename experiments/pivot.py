"""The table of a comparison with one setting across: a row for each strategy, a column for each trace.

    python experiments/pivot.py runs/compare-digits-trace-strategy-seed-5b64aa873e
    python experiments/pivot.py FOLDER --across strategy --down task trace --value accuracy

Prints Markdown: means over seeds, with the deviation where there are several; shares in percent.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import table


def pivot(
    rows: list[dict[str, str]], across: str, down: list[str], value: str
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table.

    Parameters
    ----------
    rows
        Those of `table.csv`, by column.
    across, down
        Columns whose values become columns, and columns that tell the rows apart.
    value
        Column with what is shown, such as `last`, the mean of the last ten evaluations.

    Raises
    ------
    ValueError
        A column is not there.
    """
    for name in (across, *down, value):
        if name not in rows[0]:
            raise ValueError(f"no column {name!r}; there are: {', '.join(rows[0])}")
    columns = list(dict.fromkeys(row[across] for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        lines.setdefault(tuple(row[name] for name in down), {})[row[across]] = shown(row, value)
    return [*down, *columns], [[*key, *(line.get(c, "") for c in columns)] for key, line in lines.items()]


def shown(row: dict[str, str], value: str) -> str:
    """Return a number of a row, with its deviation."""
    if not row[value]:
        return "diverged"
    percent = 100 if value in ("accuracy", "last") else 1
    text, deviation = f"{percent * float(row[value]):.4g}", row.get(f"{value}_deviation", "")
    return f"{text} ± {percent * float(deviation):.1f}" if deviation else text


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    parser.add_argument("--across", default="trace", help="(default: trace)")
    parser.add_argument("--down", nargs="+", default=["strategy"], help="(default: strategy)")
    parser.add_argument("--value", default="last", help="(default: last)")
    arguments = parser.parse_args()
    try:
        with (arguments.folder / "table.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        header, lines = pivot(rows, arguments.across, arguments.down, arguments.value)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(table(header, lines))


if __name__ == "__main__":
    main()
