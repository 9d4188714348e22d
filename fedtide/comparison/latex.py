r"""Tables in LaTeX, for the package booktabs: a whole `table` with its caption, to be used by `\input`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from fedtide.comparison.pivot import Pivot
from fedtide.comparison.tables import Columns, headings

WIDTH = 70  # characters of a line, as in the class `article`; more columns continue below
PACKAGE = r"% \usepackage{booktabs}" + "\n"
_NUMBER = re.compile(r"([-+\d.,e]+)( ± [-+\d.,e]+)?( .*)?")
_TEX = str.maketrans(
    {sign: "\\" + sign for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "·": r"$\cdot$", "<": "$<$", ">": "$>$", "|": "$|$"}
)


def pivot_table(pivot: Pivot, about: str = "") -> str:
    """Return the table of a paper: its columns have a heading for each key of the settings."""
    blocks = [*_blocks(pivot)]
    lines: list[str] = []
    for columns in blocks:
        lines += [*([r"\midrule"] if lines else []), *_head(pivot, columns), r"\midrule"]
        for i, (method, *cells) in enumerate(pivot.texts):
            shown = (_number(cells[j], (i, j) in pivot.best) for j in columns)
            lines.append(_line([_escaped(method), *shown]))
    name, unit = pivot.measure.name, pivot.measure.unit
    title = f"{name[:1].upper()}{name[1:]}{' in' if unit else ''}{unit}."
    caption = " ".join(filter(None, [title, pivot.note, about]))
    return _table("l" + "r" * max(map(len, blocks)), lines, caption)


def latex(rows: Sequence[Columns], about: str) -> str:
    """Return a table of texts."""
    names = headings(rows)
    body = [_line([_escaped(row.get(name, "")) for name in names]) for row in rows]
    return _table("l" * len(names), [_line(map(_escaped, names)), r"\midrule", *body], about)


def _table(columns: str, lines: Sequence[str], caption: str) -> str:
    begin = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}", r"\smallskip"]
    begin += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*begin, *lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _blocks(pivot: Pivot) -> Iterator[range]:
    """Yield the columns that stand side by side, as many as fit on a line."""
    _, *columns = zip(*pivot.texts, strict=True)
    room = WIDTH - max(map(len, pivot.methods))
    widths = [
        3 + max(map(len, [*column, *setting.values()]))
        for column, setting in zip(columns, pivot.settings, strict=True)
    ]
    first, last = 0, len(widths)
    for end in range(1, last + 1):
        if end == last or sum(widths[first : end + 1]) > room:
            yield range(first, end)
            first = end


def _head(pivot: Pivot, columns: range) -> Iterator[str]:
    """Yield a line for each key of the settings; neighbours that have the same value share it."""
    keys = [*pivot.settings[0]]
    if not keys:
        yield _line(["", _escaped(pivot.heading)])
    for depth, key in enumerate(keys, start=1):
        path = [[*pivot.settings[j].values()][:depth] for j in columns]
        spans = [(of[-1], len([*same])) for of, same in itertools.groupby(path)]
        cells = [rf"\multicolumn{{{span}}}{{c}}{{{_escaped(text)}}}" for text, span in spans]
        yield _line([_escaped(key), *cells])
        if depth < len(keys):
            ends = [*itertools.accumulate((span for _, span in spans), initial=1)]
            yield " ".join(rf"\cmidrule(lr){{{a + 1}-{b}}}" for a, b in itertools.pairwise(ends))


def _number(text: str, bold: bool) -> str:
    """Return a mean and its deviation, in mathematics."""
    if not (found := _NUMBER.fullmatch(text)):
        return _escaped(text) or "--"
    mean, deviation, more = (part.replace(",", "{,}") for part in found.groups(default=""))
    shown = (rf"\mathbf{{{mean}}}" if bold else mean) + deviation.replace("±", r"\pm")
    return f"${shown}${_escaped(more)}"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return text.translate(_TEX)
