"""A picture of a trace, clients x rounds above the fraction online, in one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flexfl.engine.report.trace_report import State, States
from flexfl.engine.wording import count

CELLS = 1000  # at most, in either direction: the page stays small for any number of clients and rounds
WIDTH, CURVE, LEFT, GAP = 1000, 140, 70, 46  # of the drawing, in SVG units

# After Okabe and Ito: distinguishable with colour blindness.
COLOURS = {
    State.ABSENT: (255, 255, 255),
    State.OFFLINE: (217, 220, 226),
    State.DROPPED: (213, 94, 0),
    State.INCOMPLETE: (240, 200, 66),
    State.COMPLETE: (0, 114, 178),
}


class HeatMap:
    """Counts of the states in each cell of clients x rounds; a cell holds one of each if there is room.

    Parameters
    ----------
    num_clients, num_rounds
        N and R.
    """

    def __init__(self, num_clients: int, num_rounds: int) -> None:
        self.num_clients, self.num_rounds = num_clients, num_rounds
        self.height, self.width = min(num_clients, CELLS), min(num_rounds, CELLS)
        self.counts = np.zeros((self.height, self.width, len(State)), np.int64)
        row = np.arange(num_clients, dtype=np.int64) * self.height // num_clients
        self._offset = row * len(State)

    def add(self, t: int, states: States) -> None:
        """Count a round's states, shape (N,)."""
        column = (t - 1) * self.width // self.num_rounds
        counts = np.bincount(self._offset + states, minlength=self.height * len(State))
        self.counts[:, column] += counts.reshape(self.height, len(State))

    def pixels(self) -> NDArray[np.uint8]:
        """Return the colours, shape (height, width, 3): those of the states, mixed by their counts."""
        palette = np.array([COLOURS[state] for state in State], np.float64)
        mixed = self.counts @ palette / np.maximum(self.counts.sum(axis=2, keepdims=True), 1)
        return np.asarray(mixed.round(), np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels of shape (height, width, 3) as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: no filter
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # RGB with 8 bits per channel
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def page(title: str, lines: Iterable[tuple[str, str]], heat: HeatMap, online: list[float | None]) -> str:
    """Return the HTML.

    Parameters
    ----------
    title
        Title of the page.
    lines
        Names and texts of the summary.
    heat
        The heat map of all rounds.
    online
        Fraction of the members that is online in each round.
    """
    table = "".join(f"<tr><th>{html.escape(name)}<td>{html.escape(text)}" for name, text in lines)
    legend = "".join(
        f'<span style="background:rgb{COLOURS[state]}"></span>{state.name.lower()} ' for state in State
    )
    clients, rounds = -(-heat.num_clients // heat.height), -(-heat.num_rounds // heat.width)
    mixed = f" A cell mixes the colours of up to {count(clients, 'client')} and {count(rounds, 'round')}."
    return _PAGE.format(
        title=html.escape(title),
        legend=legend,
        note=mixed if clients * rounds > 1 else "",
        drawing=_drawing(heat, online),
        table=table,
    )


def _drawing(heat: HeatMap, online: list[float | None]) -> str:
    """Return the heat map with the curve below it, on the same axis of rounds."""
    height = min(max(4 * heat.height, 160), 600)
    image = base64.b64encode(png(heat.pixels())).decode()
    bottom = height + GAP + CURVE
    place = f'x="{LEFT}" y="0" width="{WIDTH}" height="{height}" preserveAspectRatio="none"'
    parts = [
        f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{image}"/>',
        _frame(0, height),
        _frame(height + GAP, CURVE),
        _curve(online, heat.width, height + GAP),
    ]
    parts += [
        _text(LEFT - 8, height * (client + 0.5) / heat.num_clients + 4, str(client), "end")
        for client in range(0, heat.num_clients, _step(heat.num_clients))
    ]
    step = _step(heat.num_rounds)
    for t in sorted({1, *range(step, heat.num_rounds + 1, step)}):
        x = LEFT + WIDTH * (t - 0.5) / heat.num_rounds
        parts += [_text(x, y + 18, str(t), "middle") for y in (height, bottom)]
    parts += [_text(LEFT - 8, bottom - CURVE * y + 4, f"{y:.0%}", "end") for y in (0, 0.5, 1)]
    parts += [_text(0, 12, "client", "start"), _text(LEFT + WIDTH, height + 36, "round", "end")]
    parts.append(_text(LEFT, height + GAP - 8, "fraction of the members that is online", "start"))
    size = f"0 -10 {LEFT + WIDTH + 30} {bottom + 36}"
    return f'<svg viewBox="{size}" role="img" aria-label="clients by rounds">{"".join(parts)}</svg>'


def _curve(online: list[float | None], width: int, top: int) -> str:
    """Return the mean of each column as a line and its range as a band; no point without members."""
    fractions = np.array([np.nan if fraction is None else fraction for fraction in online])
    columns = np.arange(len(fractions)) * width // len(fractions)
    points = []
    for column in range(width):
        own = fractions[(columns == column) & ~np.isnan(fractions)]
        if own.size:
            points.append((LEFT + WIDTH * (column + 0.5) / width, own.min(), own.mean(), own.max()))
    if not points:
        return ""

    def path(values: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{top + CURVE * (1 - y):.1f}" for x, y in values)

    band = [(x, high) for x, _, _, high in points] + [(x, low) for x, low, _, _ in reversed(points)]
    colour = f"rgb{COLOURS[State.COMPLETE]}"
    return (
        f'<polygon points="{path(band)}" fill="{colour}" opacity="0.25"/>'
        f'<polyline points="{path((x, mean) for x, _, mean, _ in points)}" fill="none" stroke="{colour}"/>'
    )


def _step(count: int) -> int:
    """Return a step of 1, 2 or 5 times a power of ten for at most eight ticks in `count`."""
    digits = 1
    while count > 40 * digits:
        digits *= 10
    return next(digits * factor for factor in (1, 2, 5) if count <= 8 * digits * factor)


def _frame(y: int, height: int) -> str:
    return f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{height}" fill="none" stroke="#888"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 sans-serif; max-width: 1150px; margin: 1.5em auto; padding: 0 1em; color: #222;
  background: #fff }}
h1 {{ font-size: 1.2em; overflow-wrap: anywhere }}
svg {{ width: 100%; font-size: 13px; fill: #222 }}
span {{ display: inline-block; width: 1em; height: 1em; border: 1px solid #888; vertical-align: -.1em;
  margin: 0 .3em 0 .8em }}
th {{ text-align: left; vertical-align: top; padding-right: 1.2em; white-space: nowrap }}
</style></head><body>
<h1>{title}</h1>
<p>{legend}{note}</p>
{drawing}
<table>{table}</table>
</body></html>
"""
