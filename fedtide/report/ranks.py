"""The critical-difference diagram: mean ranks of methods, and bars that join those not told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedtide.base.wording import count
from fedtide.comparison import claims
from fedtide.comparison.ranking import Ranking
from fedtide.report import plots
from fedtide.report.plots import Figure, Plot, Toggle

MAX_METHODS = 40
ROW, LEVEL = 1.0, 0.45  # heights of a method's line and of a bar, in units of the vertical axis


def ranks_figure(rankings: Sequence[Ranking]) -> Figure | None:
    """Return the diagrams of those rankings that have settings enough (Demšar 2006, Figure 1)."""
    drawn = [ranking for ranking in rankings if ranking.enough]
    if not drawn:
        return None
    toggles = [Toggle("By", {str(i): ranking.measure for i, ranking in enumerate(drawn)})]
    return Figure(
        "ranks",
        "Which methods are told apart",
        f"Mean ranks of {count(len(drawn[0].methods), 'method')}; the table has the numbers.",
        plots.views(toggles, lambda i: _view(drawn[int(i)])),
        toggles,
        table=plots.columns_table(claims.ranks_table(drawn)),
        notes=[*claims.sentences(drawn), *_notes(drawn)],
        height=110 + 28 * min(MAX_METHODS, max(len(ranking.methods) for ranking in drawn)),
    )


def _notes(drawn: Sequence[Ranking]) -> list[str]:
    notes = []
    if len(drawn[0].methods) > 2:
        notes.append("Thick bars join methods that are not told apart.")
        strength = ", ".join(f"{r.concordance:.2f} by {r.measure}" for r in drawn)
        notes.append(f"Agreement of the settings (Kendall's W, from 0 to 1): {strength}.")
    notes.append(claims.RANKS)
    most = max(len(ranking.methods) for ranking in drawn)
    return [*notes, f"The first {MAX_METHODS} methods are drawn."] if most > MAX_METHODS else notes


def _view(ranking: Ranking) -> Plot:
    """Return a diagram: from the axis, a line leads down to each method's row and on to its name."""
    methods, ranks = ranking.methods[:MAX_METHODS], ranking.mean_ranks[:MAX_METHODS].tolist()
    k, groups = len(ranking.methods), [(i, min(j, len(methods) - 1)) for i, j in ranking.groups]
    groups = [group for group in groups if group[1] > group[0]] if k > 2 or not ranking.pairs else []
    levels = _levels(groups)
    top = LEVEL * (max(levels, default=-1) + 2)
    rows = [top + ROW * i for i in range(len(methods))]
    left, right = 1 - 0.04 * (k - 1), k + 0.04 * (k - 1)
    data = []
    for method, rank, row in zip(methods, ranks, rows, strict=True):
        hover = f"{plots.plain(method)}<br>mean rank {rank:.2f}"
        line = {"width": 1.2, "color": plots.SERIES[6]}
        data.append(plots.trace([rank, rank, left], [0, row, row], line=line))
        dot = {"size": 8, "color": plots.SERIES[0]}
        data.append(plots.trace([rank], [row], hover, marker=dot))
    for (i, j), level in zip(groups, levels, strict=True):
        height, reach = LEVEL * (level + 1), 0.008 * (k - 1)
        ends, thick = [ranks[i] - reach, ranks[j] + reach], {"width": 6, "color": plots.SERIES[1]}
        names = plots.listed([plots.plain(method) for method in methods[i : j + 1]], 6)
        data.append(plots.trace(ends, [height] * 2, f"not told apart: {names}", line=thick))
    if math.isfinite(difference := ranking.critical_difference):
        data += _ruler(difference, k)
    ticks: Plot = {"tickvals": rows, "ticktext": [plots.plain(method) for method in methods]}
    highest = -LEVEL * 3 if math.isfinite(difference) else -LEVEL
    vertical = plots.axis(
        range=[rows[-1] + ROW, highest], automargin=True, showgrid=False, fixedrange=True, **ticks
    )
    title = f"mean rank over {count(ranking.num_settings, 'setting')}, 1 is the best"
    horizontal = plots.axis(
        title, range=[left, right], side="top", dtick=1 if k <= 20 else 5, fixedrange=True
    )
    margin = {"l": 84, "r": 20, "t": 58, "b": 8}  # as the axis is above
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical, margin=margin)}


def _ruler(difference: float, k: int) -> list[Plot]:
    """Return the critical difference as a line above the axis, from the best rank on."""
    end, height, line = 1 + min(difference, k - 1), -LEVEL * 1.2, {"width": 2, "color": plots.SERIES[2]}
    hover = f"critical difference {difference:.2f}"
    low, high = height + 0.15, height - 0.15
    ruler = plots.trace([1, 1, 1, end, end, end], [low, high, height, height, high, low], hover, line=line)
    place: Plot = {"mode": "text", "text": f"  {hover}", "textposition": "middle right", "cliponaxis": False}
    return [ruler, plots.trace([end], [height]) | place]


def _levels(groups: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each bar the first level at which it touches no other; groups are in order."""
    ends: list[int] = []
    levels = []
    for i, j in groups:
        level = next((n for n, end in enumerate(ends) if end < i), len(ends))
        ends[level : level + 1] = [j]
        levels.append(level)
    return levels
