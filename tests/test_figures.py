"""Figures for print: what is drawn of a page's figures, and the files."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtide
import sim
from fedtide.comparison.comparison import Comparison
from fedtide.comparison.results import CellRun
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.engine.client_states import State
from fedtide.engine.read_run import Run
from fedtide.report import plots
from fedtide.report.__main__ import main
from fedtide.report.curves import curves_figure
from fedtide.report.figures import Print, drawings
from fedtide.report.plots import Entry, Figure, Toggle
from fedtide.report.plotting import plot

pytest.importorskip("matplotlib")
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as MatplotlibFigure

from fedtide.report.drawing import draw
from fedtide.report.printing import STYLE, compose


def drawn(figure: Figure, *panels: str) -> list[Any]:
    """The axes on which the only view of a figure is drawn."""
    axes = [*np.ravel(MatplotlibFigure().subplots(len(panels), 1))]
    draw(figure, figure.views[""], dict(zip(panels, axes, strict=True)))
    return axes


def a_figure(data: list[Any], legend: list[Entry] | None = None, cells: Any = None, **layout: Any) -> Figure:
    made = plots.layout(**{"xaxis": plots.axis("x"), "yaxis": plots.axis("y")} | layout)
    return Figure("a", "A", "", {"": {"data": data, "layout": made}}, legend=legend or [], cells=cells or {})


def test_lines_and_bands() -> None:
    """A gap stays one; the look is that of the legend's entry, whatever the trace says."""
    x, own = np.array([0.0, 1, 2]), {"legendgroup": "b"}
    band = plots.band(x, np.array([1.0, 2, 3]), np.array([3.0, 5, 7]), plots.colour(1), 0.2) | own
    line = plots.trace(x, [2.0, float("nan"), 5.0], line=plots.line(1)) | own
    with rc_context(STYLE):
        (axes,) = drawn(a_figure([band, line], plots.legend(["a", "b"], "ab")), "y")
        look = [*rcParams["axes.prop_cycle"]][1]
    (shown,) = axes.get_lines()
    np.testing.assert_array_equal(shown.get_ydata(), [2, np.nan, 5])
    assert (shown.get_color(), shown.get_marker()) == (look["color"], look["marker"])
    (area,) = axes.collections
    assert {tuple(point) for point in area.get_paths()[0].vertices} >= {
        (0, 1),
        (1, 2),
        (2, 3),
        (0, 3),
        (2, 7),
    }
    assert area.get_facecolor()[0].tolist() == pytest.approx([213 / 255, 94 / 255, 0, 0.2], abs=1e-3)


def test_no_two_lines_look_alike_without_their_colours() -> None:
    looks = [(str(look["linestyle"]), look["marker"]) for look in STYLE["axes.prop_cycle"]]
    assert len({*looks}) == len(looks) == plots.MAX_LINES


def test_a_single_line_has_no_marker() -> None:
    with rc_context(STYLE):
        (axes,) = drawn(a_figure([plots.trace([1.0, 2], [3.0, 4], line=plots.line(1))]), "y")
    (line,) = axes.get_lines()
    assert (line.get_color(), line.get_marker(), line.get_linestyle()) == (plots.SERIES[1], "", "-")


def test_a_line_of_one_point_is_a_dot_of_its_colour() -> None:
    """Of a group that only the last evaluation has."""
    (axes,) = drawn(a_figure([plots.trace([6.0], [0.5], line=plots.line(1))]), "y")
    (dots,) = axes.collections
    assert dots.get_offsets().tolist() == [[6, 0.5]]
    assert to_hex(dots.get_facecolor()[0]).upper() == plots.SERIES[1]


def test_bars_areas_and_dots() -> None:
    """Bars of names are stacked, those of tasks begin somewhere; hollow and filled dots; areas are sums."""
    flat = {"type": "bar", "orientation": "h", "marker": {"color": "#000000"}}
    stacked = [
        flat | {"x": [1.0, 2], "y": ["a &amp; b", "$c$"]},
        flat | {"x": [3.0, 4], "y": ["a &amp; b", "$c$"]},
    ]
    reversed_axis = plots.axis(autorange="reversed", type="category")
    (axes,) = drawn(a_figure(stacked, barmode="stack", yaxis=reversed_axis), "y")
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (0, 2), (1, 3), (2, 4)]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a & b", r"\$c\$"]
    assert axes.yaxis_inverted()
    (axes,) = drawn(
        a_figure([flat | {"x": [2.0], "y": [7], "base": [5.0], "width": 0.6}], barmode="overlay"), "y"
    )
    (bar,) = axes.patches
    assert (bar.get_x(), bar.get_y(), bar.get_width()) == pytest.approx((5, 6.7, 2))
    upright = {"type": "bar", "x": [0, 1], "y": [60.0, 40], "width": 0.9, "marker": {"color": "#000000"}}
    (axes,) = drawn(a_figure([upright]), "y")
    assert [bar.get_height() for bar in axes.patches] == [60, 40]
    area = {"stackgroup": "all", "fillcolor": "#000000", "mode": "lines"}
    (axes,) = drawn(a_figure([area | {"x": [0, 1], "y": [1.0, 2]}, area | {"x": [0, 1], "y": [3.0, 4]}]), "y")
    assert axes.collections[1].get_paths()[0].vertices[:, 1].max() == 6
    dots = {"marker": {"color": "#000000", "size": 10, "symbol": "diamond-open"}}
    (axes,) = drawn(a_figure([plots.trace([1.0], [2.0], **dots)]), "y")
    (shown,) = axes.collections
    assert shown.get_offsets().tolist() == [[1, 2]]
    assert len(shown.get_facecolor()) == 0


def test_heat_maps_the_calendar_and_panels() -> None:
    """The upper panel is drawn over the lower one's horizontal axis; cells end between their centres."""
    days = [f"2026-01-0{day} 00:00:00" for day in (1, 2, 3)]
    heat = {"type": "heatmap", "x": days, "y": [0.0, 1.0], "yaxis": "y2", "cells": "c"}
    line = plots.trace([0.0], [50.0], line={"color": "#000000"}, mode="lines") | {
        "x": days,
        "y": [50, 60, 70],
    }
    axes = {
        "xaxis": plots.axis("time (UTC)", range=[days[0], days[2]]),
        "yaxis": plots.axis("%", domain=[0, 0.2]),
    }
    axes["yaxis2"] = plots.axis("client", domain=[0.3, 1], range=[1.5, -0.5], tickvals=[0], ticktext=["pi"])
    complete = int(State.COMPLETE)
    figure = a_figure([heat, line], cells={"c": [[0, 1, complete], [None, 1, 1]]}, **axes)
    assert [*plots.panels_of(figure.views[""])] == ["y2", "y"]
    upper, lower = drawn(figure, "y2", "y")
    (mesh,) = upper.collections
    first = np.datetime64(days[0]).astype("datetime64[D]").astype(float)
    assert mesh.get_coordinates()[0, :, 0].tolist() == [first + at for at in (-0.5, 0.5, 1.5, 2.5)]
    assert mesh.get_array()[0].tolist() == [0, 1, complete]
    assert mesh.get_array().mask.sum() == 1
    assert upper.get_ylim() == (1.5, -0.5)
    assert (upper.get_xlabel(), lower.get_xlabel()) == ("", "time (UTC)")
    assert lower.get_lines()[0].get_xdata().tolist() == [first, first + 1, first + 2]


def test_logarithmic_axes_and_lines_across() -> None:
    line = {"type": "line", "line": {"dash": "dot"}, "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    end = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 2, "x1": 2}
    axis = plots.axis("a<br>b", type="log", dtick=1, rangemode="tozero")
    (axes,) = drawn(
        a_figure([plots.trace([1.0, 2], [0.1, 10], line=plots.line(0))], yaxis=axis, shapes=[line, end]), "y"
    )
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "a\nb")
    assert [axes.yaxis.get_major_formatter()(value) for value in (0.1, 20)] == ["0.1", "20"]
    across = [[*map(list, (own.get_xdata(), own.get_ydata()))] for own in axes.get_lines()[1:]]
    assert across == [[[0, 1], [1, 1]], [[2, 2], [0, 1]]]


def run_of(strategy: str, accuracies: list[float], **varied: Any) -> CellRun:
    records = [
        {
            "round": t,
            "accuracy": a,
            "loss": 1 - a,
            "active": [0] * (t > 0),
            "steps": [1],
            "virtual_seconds": 90.0 * t,
        }
        for t, a in enumerate(accuracies)
    ]
    cell = {"strategy": strategy, **varied}
    return CellRun(
        Cell(Settings.from_mapping(cell, "here"), cell),
        Run(Path(), {}, {"final": {"accuracy": accuracies[-1]}}, records),
    )


GRID = [
    run_of(strategy, [0.1, 0.2 + 0.1 * i, 0.5], trace=trace)
    for i, strategy in enumerate(("fedavg", "mifa"))
    for trace in ("phones", "labels")
]


def test_which_panels_are_drawn() -> None:
    """Each curve of each setting and of all settings together, over one axis."""
    subject = Comparison(GRID, Path())
    runs = {label: [run for _, run in group] for label, group in subject.groups.items()}
    figure = curves_figure(runs, subject.panels, {})
    assert figure is not None
    names = [drawing.name for drawing in drawings([figure], "rounds")]
    of_one = [
        f"curves-{value}{setting}"
        for value in ("accuracy", "loss")
        for setting in ("", "-trace-phones", "-trace-labels")
    ]
    assert names == of_one
    together = next(drawings([figure], "time"))
    assert [*together.views] == ["trace phones", "trace labels"]
    with rc_context(STYLE):
        made = compose(together, Print(7.0))
    assert made.get_size_inches()[0] == 7
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["fedavg", "mifa"]
    assert [[line.get_ydata()[1] for line in axes.get_lines()] for axes in made.axes] == [[20, 30]] * 2
    assert made.axes[0].get_xlabel() == "virtual time, minutes"
    with pytest.raises(
        ValueError, match="x is bytes, which these runs do not have; they have rounds, uploads, time"
    ):
        [*drawings([figure], "bytes")]
    records = [r | {"train_loss": 2.0 - r["round"] / 2} for r in GRID[0].run.records]
    figure = curves_figure({"a": [Run(Path(), {}, {}, records)]}, {"": {"a": "a"}}, {})
    assert figure is not None
    of_training = [*drawings([figure], "rounds")][-1]
    assert (of_training.name, of_training.value) == ("curves-train-loss", "train_loss")
    with rc_context(STYLE):
        assert compose(of_training, Print()).get_size_inches().tolist() == [3.4, 1.9]
    first_only = [
        Toggle("Run with", {"0": "a, b", "1": "c"}),
        Toggle("Part", {"first": "First", "last": "Last"}),
    ]
    views = plots.views(
        first_only, lambda *keys: {"data": [], "layout": {"yaxis": {"title": {"text": "|".join(keys)}}}}
    )
    found = [*drawings([Figure("tasks", "", "", views, first_only)], "rounds")]
    assert [(drawing.name, *drawing.views.values()) for drawing in found] == [
        ("tasks-a", views["0|first"]),
        ("tasks-c", views["1|first"]),
    ]


def test_plots_of_runs_and_comparisons() -> None:
    """A curve for each setting; where asynchronous methods are among others, over time."""
    from matplotlib import pyplot

    axes = plot(Comparison(GRID, Path()), "loss")
    assert [own.get_title() for own in axes] == ["trace phones", "trace labels"]
    assert axes[0].get_lines()[0].get_ydata().tolist() == [0.9, 0.8, 0.5]
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == ("rounds", "loss")
    both = [run_of("fedavg", [0.1, 0.2, 0.5], **{"round-ends": ends}) for ends in (0, 5)]
    (own,) = plot(Comparison(both, Path()))
    assert own.get_xlabel() == "virtual time, minutes"
    assert [text.get_text() for text in own.get_legend().get_texts()] == [
        "fedavg · round-ends 0",
        "fedavg · round-ends 5",
    ]
    _, ax = pyplot.subplots()
    assert both[0].run.plot(ax=ax, x="uploads") is ax
    assert ax.get_lines()[0].get_xdata().tolist() == [0, 1, 2]
    comparison = fedtide.Comparison(GRID, Path())
    for given, says in (
        ({"value": "acc"}, "value is 'acc', but evaluations have accuracy, loss"),
        (
            {"x": "round"},
            "x is 'round'; it must be one of rounds, uploads, bytes, time; did you mean rounds?",
        ),
        ({"ax": ax}, "ax has 1 axes for 2 settings"),
        ({"ax": ax.figure}, "ax is a Figure; give axes, as of pyplot.subplots"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            comparison.plot(**given)
    pyplot.close("all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in event time."""
    base = tmp_path_factory.mktemp("runs")
    settings = (
        "--strategy fedavg --model logistic --num-clients 6 --num-rounds 6 --local-steps 2 --trace phones"
    )
    assert sim.main([*settings.split(), "--round-ends=2", "--engine=inline", f"--run-dir={base}"]) == 0
    (found,) = base.iterdir()
    return found


def test_the_figures_of_a_run_as_files(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """The same bytes each time, one column wide, with fonts inside and no dates."""
    for name in ("a", "b"):
        assert main([str(folder), "--figures", str(tmp_path / name), "--format", "pdf,svg,png"]) == 0
    files = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()}
    panels = {"curves-accuracy", "curves-loss", "gantt", "lag-Lag", "lag-Idle-places", "lag-Lag-by-client"}
    panels |= {"participation", "seconds", "bias-accuracy-on-own-examples"}
    assert panels <= {name.partition(".")[0] for name in files}
    assert {*files} == {f"{Path(name).stem}.{kind}" for name in files for kind in ("pdf", "svg", "png")}
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'a'}: curves-accuracy.pdf, curves-accuracy.svg, ")
    curves = files["curves-accuracy.pdf"]
    assert re.search(rb"/MediaBox \[ 0 0 244\.8 ", curves)
    assert b"/FontFile2" in curves
    assert not [
        name for name, content in files.items() if b"CreationDate" in content or b"dc:date" in content
    ]


def test_figures_without_matplotlib(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One line says what to install; a comparison in a notebook is its table alone."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(folder), "--figures", "of"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    with pytest.raises(ValueError, match="figures need matplotlib"):
        GRID[0].run.plot()
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    assert "<img" not in fedtide.Comparison(GRID, Path())._repr_html_()


def test_a_style_of_ones_own_and_what_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    style = tmp_path / "my.mplstyle"
    style.write_text(
        "axes.prop_cycle: cycler('color', ['112233'])\nsvg.fonttype: none\nfont.family: DejaVu Sans\n"
    )
    given = [str(folder), "--figures", str(tmp_path / "of"), "--format=svg", "--width=5", f"--style={style}"]
    assert main(given) == 0
    text = (tmp_path / "of" / "curves-accuracy.svg").read_text()
    assert 'width="360pt"' in text
    assert "DejaVu Sans" in text
    for more, says in (
        (["--format=jpeg"], "format is 'jpeg'; it must be of pdf, svg, png"),
        (["--width=99"], "width is 99 inches; it must be from 1.5 to 20"),
        (["--style=nonesuch.mplstyle"], "style nonesuch.mplstyle: No such file or directory"),
        ([f"--style={folder / 'weights.npz'}"], "weights.npz: 'utf-8' codec can't decode"),
        (["--x=bytes", f"--figures={style}"], "my.mplstyle: File exists"),
        (["--link"], "--link is for the page, and --figures makes none"),
    ):
        capsys.readouterr()
        assert main([*given, *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
    assert main([str(folder), "--columns=2"]) == 2
    assert "--columns is for figures: add --figures DIR" in capsys.readouterr().err
