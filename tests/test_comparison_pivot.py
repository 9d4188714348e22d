"""The table of a paper: methods by settings, what is bold, and that LaTeX takes it."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedtide.comparison.latex import PACKAGE, latex, pivot_table
from fedtide.comparison.pivot import Pivot, pivots_of
from fedtide.comparison.results import CellRun, rows_of
from fedtide.config.grid import cells
from fedtide.config.target import Target
from fedtide.engine.read_run import Run


def pivots(given: Mapping[str, Any], finals: Sequence[Sequence[float]], *reach: Target) -> list[Pivot]:
    """The tables of a comparison of two seeds, with the final accuracies of each row."""
    every = [value for of in finals for value in of]
    found = []
    for cell, final in zip(cells({**given, "seed": [0, 1]}, "here"), every, strict=False):
        records = [{"round": t, "accuracy": final * t / 4} for t in range(5)]
        found.append(CellRun(cell, Run(Path(), {}, {"final": {"accuracy": final}}, records)))
    return pivots_of(rows_of(found, None, reach))


def test_methods_by_settings() -> None:
    """Bold: the best, and what is 0.1 lower with one seed only, but not what is 0.1 lower with both."""
    grid = {"strategy": ["fedavg", "mifa", "mimic"], "trace": ["always", "phones"]}
    (pivot,) = pivots(grid, [(0.4, 0.5), (0.2, 0.3), (0.4, 0.6), (0.3, 0.4001), (0.3, 0.5)])
    assert pivot.headings == ["accuracy %", "trace always", "trace phones"]
    assert pivot.texts == [
        ["fedavg", "45.00 ± 7.07", "25.00 ± 7.07"],
        ["mifa", "50.00 ± 14.14", "35.00 ± 7.08"],
        ["mimic", "40.00 ± 14.14", ""],
    ]
    assert pivot.best == {(0, 0), (1, 0), (1, 1)}
    assert pivot.columns[1] == {
        "accuracy %": "mifa",
        "trace always": "**50.00 ± 14.14**",
        "trace phones": "**35.00 ± 7.08**",
    }
    assert "over 2 seeds" in pivot.note


def test_costs_are_a_table_of_their_own() -> None:
    grid = {"strategy": ["fedavg", "mifa"], "round-ends": [0, 5]}
    finals = [(0.8, 0.4), (0.1, 0.1), (0.4, 0.8), (0.4, 0.5)]
    final, rounds = pivots(grid, finals, Target("", 0.4))
    assert [final.heading, rounds.heading] == ["accuracy %", "rounds to 40%"]
    assert rounds.texts == [
        ["fedavg · round-ends 0", "3 ± 1.41"],
        ["fedavg · round-ends 5", "never"],
        ["mifa · round-ends 0", "3 ± 1.41"],
        ["mifa · round-ends 5", "4 ± 0"],
    ]
    assert rounds.best == {(0, 0), (2, 0), (3, 0)}
    assert not rounds.is_grid
    (missed,) = pivots({"strategy": ["fedavg"]}, [(0.2, 0.8)], Target("", 0.5))[1:]
    assert (missed.texts, missed.best) == ([["fedavg", "3 (1 of 2)"]], frozenset())


def test_the_heads_of_a_table_in_latex() -> None:
    """A line for each key, where neighbours share a value; what does not fit on a line continues below."""
    grid = {"strategy": ["fedavg"], "partition": ["label", "iid"], "trace": ["always", "labels"]}
    (pivot,) = pivots(grid, [(0.5, 0.5)] * 4)
    lines = pivot_table(pivot, "More & more.").splitlines()
    assert lines[2].startswith(r"\caption{Accuracy in \%. Mean $\pm$ standard deviation over 2 seeds. ")
    assert lines[2].endswith(r"More \& more.}")
    assert lines[4:13] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"partition & \multicolumn{2}{c}{label} & \multicolumn{2}{c}{iid} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"trace & " + " & ".join([r"\multicolumn{1}{c}{always} & \multicolumn{1}{c}{labels}"] * 2) + r" \\",
        r"\midrule",
        r"fedavg & " + " & ".join([r"$\mathbf{50.00} \pm 0.00$"] * 4) + r" \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    (pivot,) = pivots({"strategy": ["fedavg"], "local-steps": [*range(1, 11)]}, [(0.5, 0.5)] * 10)
    lines = pivot_table(pivot).splitlines()
    assert lines[4] == r"\begin{tabular}{lrrrr}"
    assert [line.count("&") for line in lines if "multicolumn" in line] == [4, 4, 2]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX")
def test_latex_takes_the_tables(tmp_path: Path) -> None:
    grid = {"strategy": ["fedavg:departure=include", "mifa"], "trace": ["bernoulli:p=0.3", "labels"]}
    every = pivots(grid | {"partition": ["label", "dirichlet:alpha=0.1"]}, [(0.5, 0.6)] * 7, Target("", 0.4))
    hostile = {r"a_b & %$#{}\~^": "1 ± 2 · <x> |"}
    tables = [*map(pivot_table, every), latex([hostile], "95 % of _all_")]
    (tmp_path / "table.tex").write_text("\n".join([PACKAGE, *tables]), encoding="utf-8")
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
