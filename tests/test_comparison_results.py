"""What comparisons compute from finished cells, and the tables that they write."""

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedtide.comparison.latex import latex
from fedtide.comparison.methods import label_of, method_of, parse_baseline, setting_of
from fedtide.comparison.results import (
    CellRun,
    Row,
    cost_to_reach,
    estimate,
    parse_targets,
    rows_of,
    targets_of,
)
from fedtide.comparison.store import CellStore
from fedtide.comparison.tables import columns, comma_separated, costs, markdown, mean_and_deviation, terminal
from fedtide.config.grid import cells
from fedtide.config.target import Target
from fedtide.engine.history import Cost, History
from fedtide.engine.read_run import Run


def record(t: int, accuracy: float | None, active: int = 2, **more: Any) -> dict[str, Any]:
    shown = {"round": t, "active": [*range(active)], "bytes_up": 1_000_000, "bytes_down": 3_000_000, **more}
    shown = {"steps": [5] * active} | shown
    return shown if accuracy is None else shown | {"accuracy": accuracy}


def finished(*accuracies: float | None, **more: Any) -> Run:
    """Return a run with a record for each accuracy; `virtual_seconds` is how long a round takes."""
    clock = {key: more.pop(key) for key in ("virtual_seconds",) if key in more}
    records: list[dict[str, Any]] = [{"round": 0, "accuracy": 0.1}]
    for t, accuracy in enumerate(accuracies, start=1):
        records.append(record(t, accuracy, **more, **{key: t * seconds for key, seconds in clock.items()}))
    return Run(Path(), {}, {"final": {"accuracy": accuracies[-1]}}, records)


def to(*texts: float | str) -> list[Target]:
    return [Target.parse(str(text), "here", needs_name=False) for text in texts]


def rows(
    values: dict[str, Any], *runs: Run, reach: Sequence[float | str] = (), baseline: str = ""
) -> list[Row]:
    """The rows of a comparison of which only the first cells are finished."""
    grid = cells(values, "here")
    found = [CellRun(cell, run) for cell, run in zip(grid, runs, strict=False)]
    every = [cell.others for cell in grid for _ in range(2)]  # as of two seeds
    return rows_of(found, parse_baseline(baseline, every), to(*reach), every[2 * len(runs) :])


def test_intervals_of_student() -> None:
    """Three values 1, 2, 3: deviation 1, t = 4.3027 with two degrees of freedom."""
    assert estimate([1, 2, 3])[:3] == pytest.approx((2, 1, 4.302653 / math.sqrt(3)), rel=1e-6)
    np.testing.assert_equal(estimate([5.0]), (5.0, math.nan, math.nan, (1, 1)))
    np.testing.assert_equal(estimate([math.nan]), (math.nan, math.nan, math.nan, (0, 1)))
    some = mean_and_deviation(estimate([0.25, math.nan, 0.75]), "{:.2f}".format)
    assert some == "0.50 ± 0.35 (2 of 3)"  # a mean that the seeds of other rows cannot be compared to


def test_what_it_took_to_reach_a_value() -> None:
    run = finished(0.5, None, 0.8, 0.7, virtual_seconds=60, device_seconds=7.5, worst_client_accuracy=0.3)
    high, low, named, never, worst = to(0.75, 0.5, "accuracy=0.75", 0.81, "worst-client=0.3")
    assert cost_to_reach(run, high) == cost_to_reach(run, named) == Cost(3, 6, 3.0, 9.0, 30, 22.5, 180)
    assert cost_to_reach(run, low) == cost_to_reach(run, worst) == Cost(1, 2, 1.0, 3.0, 10, 7.5, 60)
    assert cost_to_reach(run, never) is None
    assert cost_to_reach(run, to(0.1)[0]) == Cost(0, 0, 0.0, 0.0, 0, 0.0, 0)  # before training
    unknown = record(1, 0.5, steps=[5, None])  # a client that did not say what it did, and no clock
    np.testing.assert_equal(History.of([unknown]).cost(-1), Cost(1, 2, 1.0, 3.0, *[math.nan] * 3))


def test_costs_to_several_targets() -> None:
    """Means over the seeds that got there; a value that nobody reached costs infinitely much."""
    several = [finished(0.5, 0.8, 0.9, loss=1.0), finished(0.4, 0.6, 0.7, loss=1.0)]
    (row,) = rows({"seed": [0, 1]}, *several, reach=(0.6, 0.8, 0.95, "loss=1"))
    shown = [[of[k] for k in ("to", "reached", "rounds", "MB down", "local steps")] for of in costs([row])]
    assert shown == [
        ["60%", "2 of 2", "2", "6", "20"],
        ["80%", "1 of 2", "2", "6", "20"],
        ["95%", "0 of 2", "never", "never", "never"],
        ["loss 1", "2 of 2", "1", "3", "10"],
    ]
    assert {of["virtual s"] for of in costs([row])} == {""}  # there is no clock
    assert columns(row)["rounds to 80%"] == "2 (1 of 2)"
    (line,) = csv.DictReader(io.StringIO(comma_separated([row])))
    assert (line["reached_0.8"], line["uploads_to_0.8"], line["rounds_to_0.95"]) == ("1", "4", "inf")
    assert line["virtual_seconds_to_0.95"] == ""


@pytest.mark.parametrize(
    ("given", "settings", "says"),
    [
        (["x"], {}, "reach is 'x'; it must be a number or NAME=VALUE"),
        (["accuracy=80"], {}, "80 % is 0.8"),
        (["acuracy=0.8"], {}, "evaluations have no 'acuracy'"),
        (["worst-client=0.8"], {}, "give --evaluate-clients"),
        ([0.9], {"stop-at": "accuracy=0.8"}, "runs end before, at stop-at accuracy=0.8"),
        (["loss=0.5"], {"stop-at": ["loss=0.4", "loss=0.7"]}, "runs end before, at stop-at loss=0.7"),
    ],
)
def test_targets_that_no_run_can_reach(given: list[float | str], settings: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        targets_of(cells({"seed": [0, 1], **settings}, "here"), parse_targets(given))


def test_where_runs_stop_is_the_target_unless_others_are_given() -> None:
    same, different = (
        cells({"seed": [0, 1], "stop-at": stop}, "here") for stop in ("loss=0.4", ["loss=0.4", ""])
    )
    assert targets_of(same, []) == to("loss=0.4")
    assert targets_of(same, to(0.5)) == to(0.5)
    assert targets_of(different, []) == []


def test_lower_is_better_for_errors() -> None:
    metric = {"name": "mean_absolute_error", "higher_is_better": False, "is_share": False}
    records = [{"round": t, "mean_absolute_error": e} for t, e in enumerate([9.0, 7.0, 4.0, 5.0])]
    run = Run(Path(), {}, {"final": {"mean_absolute_error": 5.0}, "metric": metric}, records)
    goal, never = to(4.5, 3.0)
    reached = cost_to_reach(run, goal)
    assert reached is not None
    assert reached.rounds == 2
    assert cost_to_reach(run, never) is None
    (row,) = rows({"seed": [0]}, run, reach=[4.5])
    shown = columns(row)
    assert (shown["mean absolute error"], shown["rounds to 4.5"]) == ("5", "2")
    assert "mean_absolute_error" in comma_separated([row]).splitlines()[0].split(",")


def test_differences_are_paired() -> None:
    """By seed, to the first strategy under the same other settings; over the seeds that both have."""
    grid = {"strategy": ["fedavg", "mifa"], "trace": ["always", "phones"], "seed": [0, 1]}
    scores = (0.5, 0.6, 0.1, 0.2, 0.7, 0.9, 0.4)  # one cell is not finished
    found = rows(grid, *map(finished, scores), reach=[0.6])
    assert [tuple(row.varied.values()) for row in found] == [
        ("fedavg", "always"),
        ("fedavg", "phones"),
        ("mifa", "always"),
        ("mifa", "phones"),
    ]
    assert [row.difference and round(row.difference.mean, 9) for row in found] == [None, None, 0.25, 0.3]
    assert found[2].difference is not None
    assert found[2].difference.deviation == pytest.approx(np.std([0.2, 0.3], ddof=1))
    reached = [[cost is not None for cost in row.reached[row.reach[0]]] for row in found]
    assert reached == [[False, True], [False, False], [True, True], [False]]


ASYNCHRONOUS = {"strategy": ["fedavg", "mifa"], "round-ends": [0, 5], "trace": ["always", "phones"]}


@pytest.mark.parametrize(
    ("baseline", "label", "differences"),
    [  # fedavg 1, 2, 3, 4, then mifa 50, 60, 70: under always and phones with 0, then with 5; the last lacks
        ("", "fedavg · round-ends 0", [None, None, 2, 2, 49, 58, 69]),
        ("strategy=fedavg", "fedavg", [None, None, None, None, 49, 58, 67]),
        ("round-ends=0,strategy=mifa", "round-ends 0 · mifa", [-49, -58, -47, -56, None, None, 20]),
        ("trace=always", "trace always", [None, 1, None, 1, None, 10, None]),
        ("strategy=mifa", "mifa", [-49, -58, -67, math.nan, None, None, None]),  # and not to round-ends 0
    ],
)
def test_the_baseline_is_a_method_or_whatever_it_names(
    baseline: str, label: str, differences: list[float | None]
) -> None:
    scores = map(finished, (1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0))
    found = rows(ASYNCHRONOUS, *scores, baseline=baseline)
    assert {row.versus for row in found} == {label}
    np.testing.assert_equal([row.difference and row.difference.mean for row in found], differences)


def test_a_baseline_lacks_the_options_of_others() -> None:
    """A method is named by less than all of its settings, as long as it is one."""
    tables = [
        {"strategy": "fedavg", "option": []},
        {"strategy": "fedprox", "option": ["mu=0.1"]},
        {"strategy": "fedprox", "option": ["mu=1"]},
    ]
    grid = {"cell": tables, "trace": ["always", "bernoulli:p=0.5"]}
    scores = [*map(finished, (1.0, 2.0, 30.0, 40.0, 50.0, 60.0))]
    for baseline in ("", "strategy=fedavg", "option=default,strategy=fedavg"):
        found = rows(grid, *scores, baseline=baseline)
        assert [row.difference and row.difference.mean for row in found] == [None, None, 29, 38, 49, 58]
    found = rows(grid, *scores, baseline="option=mu=1,trace=bernoulli:p=0.5")  # a spec with an option
    assert [row.difference and row.difference.mean for row in found] == [-59, -58, -30, -20, -10, None]


@pytest.mark.parametrize(
    ("baseline", "says"),
    [
        ("fedavg", "'fedavg' is not KEY=VALUE"),
        ("strategy=", "'strategy=' is not KEY=VALUE"),
        ("strategy=fedsgd", "no strategy is 'fedsgd'; there are fedavg, mifa"),
        ("seed=1", "seed does not vary; what varies is strategy, round-ends"),
        ("strategy=fedavg,round-ends=5", "no combination of settings has all of these"),
        ("round-ends=0", "is it fedavg · round-ends 0 or mifa · round-ends 0?"),
    ],
)
def test_baselines_that_no_comparison_has(baseline: str, says: str) -> None:
    tables = [("fedavg", 0), ("mifa", 0), ("mifa", 5), ("fedavg", 3)]
    every = [{"strategy": strategy, "round-ends": ends} for strategy, ends in tables]
    if "is it" in says:
        every[3] = {"strategy": "scaffold", "round-ends": 3}
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_baseline(baseline, every)


def test_what_belongs_to_a_method() -> None:
    varied = {"strategy": "fedavg", "option": [], "round-ends": 0, "trace": "always", "seed": 1}
    assert label_of(method_of(varied)) == "fedavg · option default · round-ends 0"
    assert label_of(setting_of(varied)) == "trace always"


def test_options_can_vary() -> None:
    tables = [{"option": ["departure=include"]}, {"option": "departure=auto,outliers=clip"}]
    found = rows({"cell": tables, "seed": [0, 1]}, *map(finished, (0.1, 0.3, 0.5, 0.7)))
    assert [row.score.mean for row in found] == pytest.approx([0.2, 0.6])
    assert "| departure=auto,outliers=clip |" in markdown([columns(row) for row in found])


def test_rows_have_scores_and_no_final_values() -> None:
    """Of 20 rounds, the last two; a seed whose last evaluations are no numbers has no score."""
    (row,) = rows({"seed": [0, 1]}, finished(*[0.5] * 18, 0.8, 0.6), finished(*[0.5] * 19, None))
    assert row.scores == {0: pytest.approx(0.7), 1: 0.5}
    diverged = finished(*[0.5] * 18, math.nan, 0.5, tested_examples=9)
    assert math.isnan(diverged.score())


def test_tables_escape_what_their_formats_use() -> None:
    shown = [{"trace": "a|b_c", "accuracy %": "1 ± 2"}, {"trace": "x & y"}]
    assert markdown(shown).splitlines()[2:] == ["| a\\|b_c | 1 ± 2 |", "| x & y |  |"]
    assert r"a$|$b\_c & 1 $\pm$ 2 \\" in latex(shown, "")
    assert r"x \& y &  \\" in latex(shown, "")
    assert r"accuracy \%" in latex(shown, "")
    assert markdown(shown, "Means.").endswith("|\n\nMeans.\n")
    assert r"\caption{95 \% intervals.}" in latex(shown, "95 % intervals.")
    assert "[red]x[/red]" in printed({"run-dir": "[red]x[/red]"}, 80)


def printed(row: dict[str, str], width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(terminal([row], "1 run", width))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 90, 200])
def test_no_cell_of_the_terminal_is_broken(width: int) -> None:
    """Where it is narrow, columns are left out."""
    numbers = {"accuracy %": "44.37 ± 0.59", "95 % interval": "39.02 to 49.72"}
    numbers |= {"worst client %": "58.77 ± 11.15", "vs fedavg": "+0.72"}
    text = printed({"strategy": "flwr.server.strategy.FedAdam:eta=0.05", **numbers}, width)
    (line,) = [line for line in text.splitlines() if "FedAdam" in line]
    assert ("39.02 to 49.72" in line) == (width > 80)
    assert ("58.77 ± 11.15" in line) == (width > 90)
    assert "44.37 ± 0.59" in line
    assert "+0.72" in line


def test_the_interval_of_a_share_ends_at_0_and_1() -> None:
    """Margin: 12.7062 (Student) x 0.045."""
    (row,) = rows({"seed": [0, 1]}, finished(0.90), finished(0.99))
    assert columns(row)["95 % interval"] == "37.32 to 100.00"


def test_two_comparisons_finish_the_same_cell(tmp_path: Path) -> None:
    """Their files are the same: the second ones are dropped, or take their place."""
    store, settings = CellStore(str(tmp_path)), cells({"seed": [0]}, "here")[0].settings
    content = {
        "summary.json": b'{"rounds": 0, "final": {}}',
        "metrics.jsonl": b'{"round": 0}\n',
        "config.toml": b"[versions]\n",
    }
    store.save(settings, content)
    store.save(settings, content)
    found = store.load(settings)
    assert found is not None
    assert found.records == [{"round": 0}]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [store.path(settings).name]
