"""Participation: clients by rounds, above the share of the members that is online."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.wording import client_name, count
from fedtide.engine.client_states import State
from fedtide.engine.history import Numbers, bins
from fedtide.report import plots
from fedtide.report.participation import Participation, Picture
from fedtide.report.plots import Entry, Figure, Plot, Toggle

MAX_CURVE = 400  # points of a curve
FEW = 20  # clients x rounds in a cell: of more, the share that took part says more than a state
MAX_NAMED = 30  # clients with their names at the axis
TABLE_ROWS = 50
ONLINE, TOOK_PART = "#A6A6A6", "#0072B2"

COLOUR_OF = {"state": "State", "share": "Share that took part"}
ORDERS = {"availability": "Availability", "index": "Number"}
AXES = {"rounds": "Rounds", "time": "Virtual time"}
SHARES: Plot = {
    "zmin": 0,
    "colorscale": "Cividis",
    "showscale": True,
    "colorbar": {
        **{"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "len": 0.5},
        **{"nticks": 4, "ticksuffix": " %", "thickness": 10, "xpad": 0, "ypad": 2, "outlinewidth": 0},
    },
}


def participation_figure(
    runs: Sequence[tuple[str, Participation]], notes: Sequence[str] = ()
) -> Figure | None:
    """Return the figure of runs, by name; None if there are none. Those that are equal are shown once."""
    different, _ = plots.merged(
        runs, lambda a, b: a.rounds == b.rounds and np.array_equal(a.grid.states, b.grid.states)
    )
    if not different:
        return None
    shown = [*different.items()]
    pictures = {
        (str(i), order): p.grid.picture(p.grid.by_availability() if order == "availability" else None)
        for i, (_, p) in enumerate(shown)
        for order in ORDERS
    }
    kinds = _kinds([*pictures.values()])
    names = {str(i): name for i, (name, _) in enumerate(shown)}
    toggles = [
        Toggle("Participation with", names),
        Toggle("Clients by", ORDERS),
        Toggle("Colour", kinds),
        Toggle("Against", AXES if all(p.hours is not None for _, p in shown) else {"rounds": AXES["rounds"]}),
    ]

    def draw(run: str, order: str, kind: str, x: str) -> Plot:
        made = _view(shown[int(run)][1], pictures[run, order], order, kind, x == "time")
        made["data"][0]["cells"] = f"{run}-{order}-{kind}"
        return made

    states = sorted({State(code) for _, p in shown for code in np.unique(p.grid.states).tolist()})
    online = [Entry("share online", ONLINE, group="online")] if _known(shown[0][1].online) else []
    return Figure(
        "participation",
        "Participation",
        f"Clients by rounds, coloured by state ({', '.join(s.shown for s in states)}); below, the share of "
        "the members that is online and that took part.",
        plots.views(toggles, draw),
        toggles,
        legend=[
            *(Entry(state.shown, f"state-{state.value}", is_area=True) for state in states),
            *online,
            Entry("share that took part", TOOK_PART, group="took"),
        ],
        cells={
            f"{run}-{order}-{kind}": _cells(picture, kind)
            for (run, order), picture in pictures.items()
            for kind in kinds
        },
        table=plots.table_of(
            ["client", *(f"{state.shown}, %" for state in states)],
            {name: _rows(participation, states) for name, participation in shown},
            "participation with",
        ),
        notes=[*notes, *_notes(shown, pictures)],
        height=560,
    )


def _kinds(pictures: Sequence[Picture]) -> dict[str, str]:
    """Return the colours to choose from; the shares come first where many clients share a cell."""
    if all(picture.is_exact for picture in pictures):
        return {"state": COLOUR_OF["state"]}
    many = any(math.prod(picture.largest) > FEW for picture in pictures)
    return dict(sorted(COLOUR_OF.items(), reverse=not many))


def _notes(
    shown: Sequence[tuple[str, Participation]], pictures: Mapping[tuple[str, str], Picture]
) -> list[str]:
    """Describe samples, and how much a cell stands for."""
    found: dict[str, list[str]] = {}
    for i, (name, participation) in enumerate(shown):
        picture = pictures[str(i), "index"]
        clients, rounds = picture.largest
        size = f"A cell stands for up to {count(clients, 'client')} x {count(rounds, 'round')}."
        for note in [*participation.notes, *([] if picture.is_exact else [size])]:
            found.setdefault(note, []).append(name)
    notes = [
        note if len(of) == len(shown) else f"{plots.listed(of, 3)}: {note}" for note, of in found.items()
    ]
    if not all(picture.is_exact for picture in pictures.values()):
        notes.append("A cell shows its most frequent state, or the share of its clients that took part.")
    return notes


def _cells(picture: Picture, kind: str) -> list[list[float | None]]:
    if kind == "state":
        cells: NDArray[Any] = picture.states
    else:
        share = 100 * picture.took_part
        whole = _top(picture) > 20
        cells = (np.nan_to_num(share).round().astype(int) if whole else share.round(2)).astype(object)
        cells[np.isnan(share)] = None
    rows: list[list[float | None]] = cells.tolist()
    return rows


def _top(picture: Picture) -> float:
    """Return the percentage of the last colour: where few of many are asked, all shares are small."""
    known = picture.took_part[np.isfinite(picture.took_part)]
    return 100 * float(known.max()) if known.any() else 100.0


def _view(participation: Participation, picture: Picture, order: str, kind: str, in_time: bool) -> Plot:
    """Return the heat map over the curves, on the same axis."""
    hours = participation.hours if in_time else None
    positions = np.array(participation.rounds, np.float64) if hours is None else hours
    of_round = dict(zip(participation.rounds, positions.tolist(), strict=True))
    x = [(of_round[a] + of_round[b]) / 2 for a, b in picture.rounds]
    y = [(a + b) / 2 for a, b in picture.clients]
    began = participation.began if in_time else None
    title, at = ("round", "round %{x:.5~g}") if hours is None else ("virtual time, hours", "hour %{x:.5~g}")
    if began is not None:
        title, at = "time (UTC)", "%{x|%Y-%m-%d %H:%M}"
    heat = {
        "type": "heatmap",
        "x": plots.numbers(x),
        "y": plots.numbers(y),
        "yaxis": "y2",
        "rows": _row_names(participation, picture, order),
        "columns": _column_names(participation, picture),
        "hoverongaps": False,
        "hovertemplate": "%{text}<extra></extra>",
        **(SHARES | {"zmax": _top(picture)} if kind == "share" else {"showscale": False}),
    }
    shares = plots.axis("share of<br>members, %", domain=[0, 0.22], range=[-3, 103], tickvals=[0, 50, 100])
    horizontal = plots.axis(title, anchor="y", range=plots.numbers(_ends(x)))
    made = plots.layout(xaxis=horizontal, yaxis=shares, yaxis2=_vertical(participation, picture, order, y))
    if kind == "share":
        made["margin"]["t"] = 52  # for the colour bar
    data = [heat, *_curves(participation, positions, at)]
    if began is not None:
        for trace in data:
            trace["x"] = [plots.date(began + 3600 * hour) for hour in trace["x"]]
        ends = [plots.date(began + 3600 * hour) for hour in horizontal["range"]]
        horizontal |= {"range": ends, "tickangle": 0}
    return {"data": data, "layout": made}


def _vertical(participation: Participation, picture: Picture, order: str, y: Sequence[float]) -> Plot:
    """Return the axis of the clients; of few, each has its name."""
    clients = [k for k in picture.single if k is not None]
    few = len(y) <= MAX_NAMED and len(clients) == len(y)
    title = "client by availability<br>(rank)" if order == "availability" and not few else "client"
    ticks = plots.client_ticks(y, clients, participation.devices) if few else {}
    return plots.axis(title, domain=[0.28, 1], range=_ends(y)[::-1], **ticks)


def _row_names(participation: Participation, picture: Picture, order: str) -> list[str]:
    """Return the client of each row, or the clients that share it."""
    many = "ranks by availability" if order == "availability" else "clients"
    return [
        f"{many} {a} to {b}"
        if client is None
        else plots.plain(f"client {client_name(client, participation.devices)}")
        for (a, b), client in zip(picture.clients, picture.single, strict=True)
    ]


def _column_names(participation: Participation, picture: Picture) -> list[str]:
    """Return the rounds of each column, and when the last of them ends."""
    hours, began = participation.hours, participation.began
    ends = {} if hours is None else dict(zip(participation.rounds, hours.tolist(), strict=True))
    names = []
    for a, b in picture.rounds:
        name = f"round {a}" if a == b else f"rounds {a} to {b}"
        if b in ends:
            end = f"hour {ends[b]:.4g}" if began is None else f"{plots.date(began + 3600 * ends[b])} UTC"
            name += f", until {end}"
        names.append(name)
    return names


def _ends(centres: Sequence[float]) -> list[float]:
    half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2 if len(centres) > 1 else 0.5
    return [centres[0] - half, centres[-1] + half]


def _curves(participation: Participation, x: Numbers, at: str) -> list[Plot]:
    """Return the shares online and that took part: means, with a band where rounds share a point.

    `at` is the place on the axis, as a template of Plotly.
    """
    data: list[Plot] = []
    starts, counts = bins(len(x), MAX_CURVE)
    centres = np.add.reduceat(x, starts) / counts
    for group, name, colour, width, values in (
        ("online", "online", ONLINE, 4, participation.online),
        ("took", "took part", TOOK_PART, 1.5, participation.took_part),
    ):
        if not _known(values):
            continue
        if (counts > 1).any():
            low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
            area = plots.band(centres, 100 * low, 100 * high, colour, 0.2)
            data.append(area | {"legendgroup": group})
        hover, line = f"{at}: %{{y:.1f}} % {name}", {"color": colour, "width": width}
        means = 100 * np.add.reduceat(values, starts) / counts
        data.append(plots.trace(centres, means, hover, line=line, legendgroup=group))
    return data


def _known(values: Numbers) -> bool:
    return bool(np.isfinite(values).any())


def _rows(participation: Participation, states: Sequence[State]) -> Iterator[list[str]]:
    """Yield each state's share by clients, or by groups of neighbouring ones."""
    grid = participation.grid
    for a, b in itertools.pairwise(plots.thinned(len(grid.states) + 1, TABLE_ROWS + 1)):
        part = grid.states[a:b]
        first, last = a * grid.step, min((b - 1) * grid.step, grid.num_clients - 1)
        clients = client_name(first, participation.devices) if first == last else f"{first} to {last}"
        shares = np.bincount(part.ravel(), minlength=len(State)) / part.size
        yield [clients, *(plots.percent(shares[state], 1) for state in states)]
