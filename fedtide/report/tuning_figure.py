"""The search before a comparison: the metric against each value that was tried, a line for each method.

It tells whether a ranking depends on the rate: methods whose lines cross are better at different rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtide.comparison.results import label_of
from fedtide.engine.read_run import is_number, read_json
from fedtide.ground.wording import count
from fedtide.report import plots
from fedtide.report.figure import Figure, Plot, Table, Toggle
from fedtide.tasks import Metric

FILE = "tuning.json"  # in the folder of a comparison
TABLE_ROWS = 400
MAX_LISTED = 12
HOLLOW, FILLED, CHOSEN = "circle-open", "circle", "star"  # markers

Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Searched:
    """The search for one method, or another combination of settings, as `tuning.json` has it."""

    label: str
    trials: Sequence[Trial]  # `values`, `score` (None: not a number), `pruned` and `rounds`
    chosen: Mapping[str, Any]
    logarithmic: Sequence[str]  # keys
    widened: Mapping[str, str]  # ranges, by key
    at_end: Mapping[str, str]  # where the best value is, low or high, by key


def read_searches(folder: Path, only: str) -> list[Searched]:
    """Return the searches of a comparison; none if there were none, or the file is not what it should be.

    `only` is the label of a comparison in which nothing but the seed varies.
    """
    content = read_json(folder / FILE)
    entries = content.get("searches") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        return []
    return [_searched(entry, only) for entry in entries if _is_search(entry)]


def _is_search(entry: Any) -> bool:
    kinds = {
        "varied": dict,
        "trials": list,
        "chosen": dict,
        "logarithmic": list,
        "widened": dict,
        "at_end": dict,
    }
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), kind) for key, kind in kinds.items())
        and all(_is_trial(trial) for trial in entry["trials"])
    )


def _is_trial(trial: Any) -> bool:
    return (
        isinstance(trial, dict)
        and isinstance(trial.get("values"), dict)
        and all(isinstance(value, str | bool) or is_number(value) for value in trial["values"].values())
        and (trial.get("score") is None or is_number(trial["score"]))
    )


def _searched(entry: Mapping[str, Any], only: str) -> Searched:
    keys = ("trials", "chosen", "logarithmic", "widened", "at_end")
    return Searched(label_of(entry["varied"]) or only, *(entry[key] for key in keys))


def tuning_figure(
    searches: Sequence[Searched], panels: Mapping[str, Mapping[str, str]], metric: Metric
) -> Figure | None:
    """Return the figure of some searches, by what was searched and panel (`Subject.panels`); None without."""
    by_label = {search.label: search for search in searches if search.trials}
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))[: plots.MAX_LINES]
    drawn = {
        key: {name: by_label[panel[name]] for name in names if panel.get(name) in by_label}
        for key, panel in panels.items()
    }
    drawn = {key: panel for key, panel in drawn.items() if panel}
    keys = list(dict.fromkeys(key for one in by_label.values() for t in one.trials for key in t["values"]))
    if not drawn or not keys:
        return None
    several = len(drawn) > 1
    views = {
        f"{key}|{i}" if several else key: _view(key, panel, names, metric)
        for key in keys
        for i, panel in enumerate(drawn.values())
    }
    toggles = [Toggle("Against", {key: key.replace("-", " ") for key in keys})]
    toggles += [Toggle("With", {str(i): key for i, key in enumerate(drawn)})] if several else []
    what = keys[0].replace("-", " ") if len(keys) == 1 else "what was searched"
    trials = count(sum(len(search.trials) for search in by_label.values()), "trial")
    return Figure(
        "tuning",
        f"{metric.title.capitalize()} against {what}",
        f"{metric.title.capitalize()} on validation data of {trials}; the table has the numbers.",
        views,
        toggles if len(views) > 1 else [],
        legend=plots.legend(names, {name for panel in drawn.values() for name in panel}),
        table=_table([*by_label.values()], keys, metric),
        notes=_notes([*by_label.values()]),
        height=420,
    )


def _notes(searches: Sequence[Searched]) -> list[str]:
    shown = "Each point is a trial on validation data; stars are the values that were chosen"
    notes = [f"{shown}, hollow points are trials that were given up, at their last evaluation."]
    widened = [f"{s.label}, {key} to {of}" for s in searches for key, of in s.widened.items()]
    at_end = [f"{s.label}, {key} ({end})" for s in searches for key, end in s.at_end.items()]
    if widened:
        notes.append(f"Ranges that were widened: {plots.listed(widened, MAX_LISTED, '; ')}.")
    if at_end:
        beyond = "At an end, so that a better value may lie beyond"
        notes.append(f"{beyond}: {plots.listed(at_end, MAX_LISTED, '; ')}.")
    return notes


def _view(key: str, panel: Mapping[str, Searched], names: Sequence[str], metric: Metric) -> Plot:
    """Return the trials of a panel over the values of one key; a line where nothing else was searched."""
    title, factor = (f"{metric.title}, %", 100.0) if metric.is_share else (metric.title, 1.0)
    texts = list(
        dict.fromkeys(str(v) for one in panel.values() for v in _values(one, key) if not is_number(v))
    )
    data = []
    for name, search in panel.items():
        i, shown = names.index(name), plots.plain(name)
        tried = sorted(
            (trial for trial in search.trials if key in trial["values"] and trial["score"] is not None),
            key=lambda trial: _place(trial["values"][key], texts),
        )
        common = {"legendgroup": name, "name": shown}
        hover = f"{shown}<br>%{{text}}<br>%{{y:.4~g}} {title}"
        whole = [trial for trial in tried if not trial.get("pruned")]
        if all(len(trial["values"]) == 1 for trial in whole) and len(whole) > 1:
            x, y = _points(whole, key, texts, factor)
            data.append(plots.trace(x, y, line=plots.line(i), mode="lines", **common))
        for symbol, some in (
            (FILLED, [trial for trial in whole if trial["values"] != search.chosen]),
            (HOLLOW, [trial for trial in tried if trial.get("pruned")]),
            (CHOSEN, [trial for trial in whole if trial["values"] == search.chosen][:1]),
        ):
            if some:
                x, y = _points(some, key, texts, factor)
                marker = {"color": plots.colour(i), "symbol": symbol, "size": 14 if symbol == CHOSEN else 8}
                more = {
                    "text": [_named(trial["values"]) for trial in some],
                    "mode": "markers",
                    "marker": marker,
                }
                data.append(plots.trace(x, y, hover, **more, **common))
    axis = plots.axis(key.replace("-", " "))
    if texts:
        axis |= {"tickvals": [*range(len(texts))], "ticktext": [plots.plain(text) for text in texts]}
    elif any(key in search.logarithmic for search in panel.values()):
        axis |= {"type": "log"}
    return {"data": data, "layout": plots.layout(xaxis=axis, yaxis=plots.axis(title))}


def _values(search: Searched, key: str) -> list[Any]:
    return [trial["values"][key] for trial in search.trials if key in trial["values"]]


def _place(value: Any, texts: Sequence[str]) -> float:
    return float(texts.index(str(value))) if texts and str(value) in texts else float(value)


def _points(
    trials: Sequence[Trial], key: str, texts: Sequence[str], factor: float
) -> tuple[list[float], list[float]]:
    x = [_place(trial["values"][key], texts) for trial in trials]
    return x, [factor * trial["score"] for trial in trials]


def _named(values: Mapping[str, Any]) -> str:
    return plots.plain(", ".join(f"{key} {value}" for key, value in values.items()))


def _table(searches: Sequence[Searched], keys: Sequence[str], metric: Metric) -> Table:
    """Return all trials in the order in which they were made, the first ones of many."""
    title = f"{metric.title} %" if metric.is_share else metric.title
    rows = []
    for search in searches:
        for trial in search.trials[: max(12, TABLE_ROWS // len(searches))]:
            score = math.nan if trial["score"] is None else trial["score"]
            shown = plots.percent(score) if metric.is_share else (f"{score:.4g}" if score == score else "")
            chosen = "chosen" if trial["values"] == search.chosen else ""
            ended = "given up" if trial.get("pruned") else chosen
            tried = [str(trial["values"].get(key, "")) for key in keys]
            rows.append([search.label, *tried, shown, str(trial.get("rounds", "")), ended])
    return Table(["search for", *keys, title, "rounds", ""], rows)
