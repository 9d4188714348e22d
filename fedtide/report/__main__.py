"""Makes the reports of runs: one page that works without a network.

fedtide report runs/20260101-120000-scheme-c-digits   # again, into its folder
fedtide report runs/compare-... runs/2026...          # of several together
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtide.base.display import exit_code
from fedtide.engine.read_run import consistent
from fedtide.report.make import FILE, page_of
from fedtide.report.subject import read_subject
from fedtide.report.write import write_page


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="fedtide report", description=(__doc__ or "").splitlines()[0])
    text = "folder of a run or of a comparison"
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help=text)
    text = f"where to write the page (default: {FILE} in the folder; of several, beside the first one)"
    parser.add_argument("--output", type=Path, metavar="FILE.html", help=text)
    text = "share Plotly with other pages, in a file beside the (first) folder"
    parser.add_argument("--link", action="store_true", help=text)
    text = "what the others are compared to, such as strategy=fedavg (default: as in the comparison)"
    parser.add_argument("--baseline", default="", metavar="KEY=VALUE,...", help=text)
    text = "import the parts outside of fedtide that the folders name, to compute what they do not have"
    parser.add_argument("--trust", action="store_true", help=text)
    arguments = parser.parse_args(argv)
    place = arguments.output or _place(arguments.folders)

    def write() -> None:
        with consistent(arguments.folders):
            contents = page_of(read_subject(arguments.folders, arguments.trust, arguments.baseline))
            beside = arguments.folders[0].absolute().parent
            print(write_page(contents, place, beside if arguments.link else None))

    return exit_code(parser.prog, write)


def _place(folders: Sequence[Path]) -> Path:
    """Return a name that follows from the folders, so that no page of others is overwritten."""
    if len(folders) == 1:
        return folders[0] / FILE
    names = "\n".join(sorted(str(folder.resolve()) for folder in folders))
    return folders[0].parent / f"report-{hashlib.sha256(names.encode()).hexdigest()[:10]}.html"


if __name__ == "__main__":
    sys.exit(main())
