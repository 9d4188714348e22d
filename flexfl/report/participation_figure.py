"""The plot of participation: clients by rounds, above the share of the members that is online."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from flexfl.report.figure import (
    Entry,
    Figure,
    Plot,
    Table,
    Toggle,
    axis,
    faint,
    layout,
    listed,
    merged,
    numbers,
    percent,
    thinned,
)
from flexfl.report.history import Numbers
from flexfl.report.participation import Participation
from flexfl.report.states import Picture, State

MOST_RUNS = 12  # that have a picture
FEW = 20  # clients x rounds in a cell: of more, the share that took part tells more than a state
TABLE_ROWS = 50
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of a share, from 0 to the largest; a dot is none
LEVELS = len(DIGITS) - 1
ONLINE, TOOK_PART = "#A6A6A6", "#0072B2"

# Light and dark; absent clients have the colour of the page.
COLOURS = {
    State.ABSENT: ("#ffffff", "#16181c"),
    State.OFFLINE: ("#dfe2e7", "#33373e"),
    State.NOT_SELECTED: ("#b4bcc8", "#5a626e"),
    State.DROPPED: ("#D55E00", "#D55E00"),
    State.LOST: ("#CC79A7", "#CC79A7"),
    State.LATE: ("#E69F00", "#E69F00"),
    State.REJECTED: ("#4a4a4a", "#d5d8dc"),
    State.INCOMPLETE: ("#8CCBEF", "#2F6690"),
    State.COMPLETE: ("#0072B2", "#56B4E9"),
}
COLOUR_OF = {"state": "State", "share": "Share that took part"}
ORDERS = {"availability": "Availability", "index": "Number"}
AXES = {"rounds": "Rounds", "time": "Virtual time"}


def participation_figure(runs: Sequence[tuple[str, Participation]]) -> Figure | None:
    """Return the plot; None if there is nothing to show.

    Parameters
    ----------
    runs
        Names and participation; those that are the same are shown once.
    """
    runs = merged(runs, lambda a, b: a.rounds == b.rounds and np.array_equal(a.grid.states, b.grid.states))
    shown = runs[:MOST_RUNS]
    if not shown:
        return None
    clock = all(p.hours is not None for _, p in shown)
    drawn = [(name, p, order, _picture(p, order)) for name, p in shown for order in ORDERS]
    exact = all(picture.is_exact for *_, picture in drawn)
    kinds = [*COLOUR_OF][:1] if exact else [*COLOUR_OF]
    if any(picture.most_in_a_cell > FEW for *_, picture in drawn):
        kinds.reverse()
    names = [name for name, _ in shown]
    toggles = {
        "run": Toggle("Participation with", {str(i): name for i, name in enumerate(names)}),
        "order": Toggle("Clients by", ORDERS),
        "kind": Toggle("Colour", {kind: COLOUR_OF[kind] for kind in kinds}),
        "x": Toggle("Against", AXES if clock else {"rounds": "Rounds"}),
    }
    toggles = {key: toggle for key, toggle in toggles.items() if len(toggle.options) > 1}
    cells: dict[str, list[str]] = {}
    views: dict[str, Plot] = {}
    for name, participation, order, picture in drawn:
        for kind in kinds:
            own = f"{names.index(name)}-{order}-{kind}"
            cells[own] = _cells(picture, kind)
            for x in AXES if clock else ("rounds",):
                on = {"run": str(names.index(name)), "order": order, "kind": kind, "x": x}
                views["|".join(on[key] for key in toggles)] = _view(picture, participation, own, on)
    used = sorted({state for _, p in shown for state in p.grid.occurring()})
    return Figure(
        "participation",
        "Participation",
        f"Clients by rounds, coloured by state ({', '.join(s.shown for s in used)}); below it, the share of "
        "the members that is online and that took part.",
        views,
        [*toggles.values()],
        [
            *(Entry(state.shown, f"state-{state.value}", is_area=True) for state in used),
            *([Entry("share online", ONLINE, group="online")] if _known(shown[0][1].online) else []),
            Entry("share that took part", TOOK_PART, group="took"),
        ],
        cells,
        _table(shown),
        _notes(drawn) + ([f"The first {len(shown)} of {len(runs)} are shown."] if runs[len(shown) :] else []),
        height=560,
    )


def _picture(participation: Participation, order: str) -> Picture:
    grid = participation.grid
    return grid.picture(grid.by_availability() if order == "availability" else None)


def _notes(drawn: Sequence[tuple[str, Participation, str, Picture]]) -> list[str]:
    """Say what is a sample, and how much a cell stands for."""
    found: dict[str, list[str]] = {}
    for name, participation, order, picture in drawn:
        if order == "index":
            own = [*participation.notes, *([] if picture.is_exact else [_mixed(picture)])]
            for note in own:
                found.setdefault(note, []).append(name)
    every = len({name for name, *_ in drawn})
    notes = [note if len(of) == every else f"{listed(of, 3)}: {note}" for note, of in found.items()]
    if not all(picture.is_exact for *_, picture in drawn):
        notes.append("A cell has the colour of its most frequent state, or of the share that took part.")
    return notes


def _cells(picture: Picture, kind: str) -> list[str]:
    """Return the rows of cells, a character each."""
    digits = np.array([*DIGITS, "."])
    if kind == "state":
        return ["".join(row) for row in digits[picture.states]]
    level = np.nan_to_num(picture.took_part * (LEVELS / _top(picture)), nan=LEVELS + 1).round().astype(int)
    return ["".join(row) for row in digits[level]]


def _top(picture: Picture) -> float:
    """Return the share that the last colour stands for: where few of many are asked, all shares are small."""
    known = picture.took_part[np.isfinite(picture.took_part)]
    return float(known.max()) if known.any() else 1.0


def _view(picture: Picture, participation: Participation, cells: str, on: Mapping[str, str]) -> Plot:
    """Return the heat map over the curve, on the same axis."""
    in_time, kind, ranked = on["x"] == "time", on["kind"], on["order"] == "availability"
    of_round = dict(zip(participation.rounds, _positions(participation, in_time), strict=True))
    x = [(of_round[a] + of_round[b]) / 2 for a, b in picture.rounds]
    y = [(a + b) / 2 for a, b in picture.clients]
    title = "virtual time, hours" if in_time else "round"
    of_client = "client by availability<br>(rank)" if ranked else "client"
    hover = f"{'rank' if ranked else 'client'} %{{y:.0f}}, {title} %{{x:.5~g}}<br>%{{text}}<extra></extra>"
    heat = {
        "type": "heatmap",
        "cells": cells,
        "scale": kind,
        "x": numbers(x),
        "y": numbers(y),
        "yaxis": "y2",
        "hovertemplate": hover,
        "showscale": kind == "share",
        "top": 100 * _top(picture),
        "colorbar": _colour_bar(100 * _top(picture)),
    }
    data = [heat, *_curves(participation, [of_round[t] for t in participation.rounds], title)]
    half = (x[-1] - x[0]) / max(1, len(x) - 1) / 2 if len(x) > 1 else 0.5
    made = layout(
        xaxis=axis(title, anchor="y", range=numbers([x[0] - half, x[-1] + half])),
        yaxis=axis("share of<br>members, %", domain=[0, 0.22], range=[-3, 103], tickvals=[0, 50, 100]),
        yaxis2=axis(of_client, domain=[0.28, 1], range=_range(y)),
    )
    if kind == "share":
        made["margin"]["t"] = 52
    if len(y) <= 30 and picture.is_exact:
        made["yaxis2"] |= {"dtick": 1 if len(y) <= 12 else 5}
    return {"data": data, "layout": made}


def _colour_bar(top: float) -> Plot:
    """Return the colours' meaning, above the heat map."""
    place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "len": 0.5}
    texts = [f"{top * share:.3g} %" for share in (0, 0.5, 1)]
    ticks = {"tickvals": [0, LEVELS / 2, LEVELS], "ticktext": texts, "thickness": 10, "xpad": 0, "ypad": 2}
    return {**place, **ticks, "outlinewidth": 0}


def _range(y: Sequence[float]) -> list[float]:
    """Return the range of the clients, the first one on top."""
    half = (y[-1] - y[0]) / (len(y) - 1) / 2 if len(y) > 1 else 0.5
    return [y[-1] + half, y[0] - half]


def _positions(participation: Participation, in_time: bool) -> list[float]:
    if in_time and participation.hours is not None:
        return [float(hour) for hour in participation.hours]
    return [float(t) for t in participation.rounds]


def _curves(participation: Participation, x: Sequence[float], title: str) -> list[Plot]:
    """Return the share online and the share that took part: means, with a band where rounds share a point."""
    data: list[Plot] = []
    lines = [("online", "online", ONLINE, participation.online)]
    lines.append(("took", "took part", TOOK_PART, participation.took_part))
    starts = np.arange(min(len(x), 400)) * len(x) // min(len(x), 400)
    counts = np.diff([*starts, len(x)])
    centres = np.add.reduceat(np.array(x), starts) / counts
    for group, name, colour, values in lines:
        if not _known(values):
            continue
        mean = 100 * np.add.reduceat(values, starts) / counts
        if (counts > 1).any():
            low, high = 100 * np.fmin.reduceat(values, starts), 100 * np.fmax.reduceat(values, starts)
            around = {"x": numbers([*centres, *centres[::-1]]), "y": numbers([*high, *low[::-1]], 4)}
            area = {"fill": "toself", "fillcolor": faint(colour, 0.2), "line": {"width": 0}}
            data.append({**around, **area, "mode": "lines", "hoverinfo": "skip", "legendgroup": group})
        hover = f"{title} %{{x:.5~g}}: %{{y:.1f}} % {name}<extra></extra>"
        points = {"x": numbers(centres), "y": numbers(mean, 4), "legendgroup": group}
        line = {"color": colour, "width": 4 if group == "online" else 1.5}
        mode = "lines" if len(centres) > 1 else "markers"
        data.append({**points, "mode": mode, "line": line, "hovertemplate": hover})
    return data


def _known(values: Numbers) -> bool:
    return bool(np.isfinite(values).any())


def _mixed(picture: Picture) -> str:
    """Say how much a cell stands for."""
    clients = max(b - a + 1 for a, b in picture.clients)
    rounds = max(b - a + 1 for a, b in picture.rounds)
    ends = ("s" * (clients > 1), "s" * (rounds > 1))
    return f"A cell stands for up to {clients:,} client{ends[0]} x {rounds:,} round{ends[1]}."


def _table(runs: Sequence[tuple[str, Participation]]) -> Table:
    """Return each state's share by clients, or by groups of neighbouring ones."""
    several = len(runs) > 1
    rows = []
    states = sorted(set(itertools.chain.from_iterable(p.grid.occurring() for _, p in runs)))
    for name, participation in runs:
        grid = participation.grid
        ends = thinned(len(grid.states) + 1, TABLE_ROWS + 1)
        for a, b in itertools.pairwise(ends):
            part = grid.states[a:b]
            first, last = a * grid.step, min((b - 1) * grid.step, grid.num_clients - 1)
            clients = str(first) if first == last else f"{first} to {last}"
            counts = np.bincount(part.ravel(), minlength=len(State)) / part.size
            rows.append([*([name] if several else []), clients, *(percent(counts[s], 1) for s in states)])
    head = ["participation with"] if several else []
    return Table([*head, "client", *(f"{state.shown}, %" for state in states)], rows)
